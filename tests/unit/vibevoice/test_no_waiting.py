"""Steps ask nothing of the device: what cannot be captured as a CUDA graph is seen on the CPU already."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from triton_speech.engine.kv_cache import SlotKVCache
from triton_speech.families.vibevoice import WARM_UP_TOKENS, load_talker, make_prompt
from triton_speech.families.vibevoice.settings import Sampling

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")
"""Operations whose result the host must know before it can go on."""


class Watch(TorchDispatchMode):
    """Notes the shapes of all results, and operations that the host would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []
        self.shapes: list[tuple[str, torch.Size]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in WAITING:
            self.waited.append(name)
        # A mask as an index is looked for with nonzero inside.
        if name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        ):
            self.waited.append(f"{name} with a mask")
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.shapes.append((name, result.shape))
        return result


@pytest.fixture
def steps(folder: Path) -> Callable[[list[int]], Watch]:
    talker = load_talker(folder, slots=5, device="cpu", dtype=None, length=64)
    cache = SlotKVCache(talker.kv_shape, slots=5, length=64, dtype=talker.dtype, device=talker.device)
    prompt = make_prompt(list(WARM_UP_TOKENS), None, None)
    talker.write_prompts([(slot, prompt, Sampling(slot, slot, 2 * slot)) for slot in range(1, 5)])

    def step(rows: list[int]) -> Watch:
        slots, positions = torch.tensor(rows), torch.arange(30, 30 + len(rows))
        with torch.inference_mode():
            attend = cache.decode(slots, positions, 40)
            with Watch() as watch:
                talker.emit(slots, positions, *talker.hidden(slots, positions, attend), 8)
        return watch

    return step


def test_a_step_never_waits_for_the_device(steps: Callable[[list[int]], Watch]) -> None:
    watch = steps([1, 2, 3])
    assert watch.shapes
    assert watch.waited == []


def test_a_step_has_the_same_shapes_whatever_its_streams(steps: Callable[[list[int]], Watch]) -> None:
    assert steps([1, 2]).shapes == steps([4, 3]).shapes


def test_the_watch_sees_what_waits() -> None:
    with Watch() as watch:
        values = torch.arange(4.0)
        values[values > 1] = 0
        values.sum().item()
    assert watch.waited == ["index_put_ with a mask", "_local_scalar_dense"]
