"""Client of Triton Speech."""
