"""Stored voices: what one is, the file it lies in, and the folder of them. No Triton, no model."""
