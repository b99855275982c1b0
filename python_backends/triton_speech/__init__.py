"""Streaming speech generation on NVIDIA Triton: the server side."""
