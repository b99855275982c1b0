"""The error of a checkpoint that cannot be pulled."""

from __future__ import annotations


class PullError(ValueError):
    """What is wrong, in one sentence; nothing half-done is left where a server looks."""
