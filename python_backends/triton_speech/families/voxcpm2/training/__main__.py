"""``triton-speech train`` where the package is not installed: ``python -m triton_speech.families.voxcpm2.training``."""

from __future__ import annotations

import argparse

from .command import add_arguments, run

# The processes that speak import this module again.
if __name__ == "__main__":
    _parser = argparse.ArgumentParser()
    add_arguments(_parser)
    raise SystemExit(run(_parser.parse_args()))
