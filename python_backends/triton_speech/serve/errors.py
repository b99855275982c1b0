"""The error of a server that cannot be started."""

from __future__ import annotations


class SpeechSetupError(Exception):
    """The server cannot start or did not: one sentence that says what to change."""
