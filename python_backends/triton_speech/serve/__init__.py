"""Finds a Triton server, lays out what it needs, starts it and stops it. Standard library only."""
