"""Load on a speech server, and what its callers hear of it: ``triton-speech bench``.

``streams`` plays one request and keeps its times, ``load`` makes many of them from several processes, ``summary``
turns them into figures, ``output`` and ``plot`` show these.
"""
