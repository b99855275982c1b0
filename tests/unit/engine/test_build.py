"""Choosing an engine."""

from __future__ import annotations

import importlib.util

import pytest

from triton_speech.engine.api import EngineOptions
from triton_speech.engine.build import EngineChoice, build_engine
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_error_says_how_to_install_it(tmp_path):
    with pytest.raises(ValueError, match=r"pip install 'triton-speech\[vllm\]'"):
        build_engine(EngineChoice("vllm"), EngineOptions(), "voxcpm2", write_tiny_checkpoint(tmp_path))
