"""Binds stages to Triton's Python backend. What imports ``.triton`` runs inside the server's stubs only."""
