"""Optimisers whose steps ask nothing of the host, so that a CUDA graph can hold them: their rate is a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
LEAST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (K. Jordan, "Muon", 2024), as ``torch.optim.Muon``, for all matrices of a shape at once.

    Nesterov's momentum, decoupled decay, and a rate that is larger for matrices with more rows than columns.
    """

    def __init__(self, matrices: Iterable[Tensor], rate: float, *, weight_decay: float, momentum: float) -> None:
        matrices = list(matrices)
        defaults = {"lr": _as_rate(rate, matrices), "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(matrices, defaults)
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["momentum"] = torch.zeros_like(one)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for one in group["params"]:
                shapes.setdefault(one.shape, []).append(one)
            for alike in shapes.values():
                self._step_alike(alike, group)

    def _step_alike(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        momentum, rate = group["momentum"], group["lr"]
        gradients = [cast("Tensor", one.grad) for one in matrices]
        kept = [self.state[one]["momentum"] for one in matrices]
        torch._foreach_lerp_(kept, gradients, 1 - momentum)
        wanted = torch.lerp(torch.stack(gradients), torch.stack(kept), momentum)
        rows, columns = wanted.shape[1:]
        change = orthogonal(wanted) * (-rate * math.sqrt(max(1.0, rows / columns)))
        torch._foreach_mul_(matrices, 1 - rate * group["weight_decay"])
        torch._foreach_add_(matrices, list(change.unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """(N, A, B) -> the same in bf16 with singular values near 1, by the quintic Newton-Schulz iteration."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16()
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def adamw(parameters: list[nn.Parameter], rate: float, betas: tuple[float, float]) -> torch.optim.AdamW:
    """Without decay."""
    on_gpu = parameters[0].device.type == "cuda"
    lr = _as_rate(rate, parameters)
    return torch.optim.AdamW(parameters, lr, betas=betas, weight_decay=0, capturable=on_gpu)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"].fill_(rate)


def restore(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Takes up a state that may have been read to another device."""
    groups = []
    for saved, group in zip(state["param_groups"], optimiser.param_groups, strict=True):
        # Where steps are counted belongs to the device, not to the state.
        groups.append(saved | ({"capturable": group["capturable"]} if "capturable" in group else {}))
    optimiser.load_state_dict(state | {"param_groups": groups})
    for group in optimiser.param_groups:
        group["lr"] = group["lr"].to(group["params"][0].device)


def clip(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scales gradients down to a norm of ``most`` and returns what it was."""
    return nn.utils.clip_grad_norm_(list(parameters), most)


def _as_rate(rate: float, parameters: list[Any]) -> Tensor:
    return torch.tensor(rate, device=parameters[0].device)
