"""Triton's own load generator: input files for every model, and what its export says of streams."""
