"""Where the Triton language is there but cannot compile, plain torch runs and the log says so once."""

from __future__ import annotations

import logging

import torch

from triton_speech.families.voxcpm2 import triton_language


def test_a_host_that_cannot_compile_is_told_of_once(monkeypatch, caplog):
    # As good as a missing compiler: the module of kernels cannot be imported.
    monkeypatch.setitem(__import__("sys").modules, "triton_speech.families.voxcpm2.kernels", None)
    triton_language.compiles.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not any(triton_language.compiles(torch.device("cpu")) for _ in range(3))
    triton_language.compiles.cache_clear()
    assert len([record for record in caplog.records if "plain torch" in record.message]) == 1
