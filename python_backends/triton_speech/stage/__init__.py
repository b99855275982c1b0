"""Binds stages to Triton's Python backend. Imported inside the server's stubs only."""
