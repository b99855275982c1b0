"""The diffusion transformer as graphs: one round of its solver, and all rounds up to a number of steps."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..checkpoint_tensors import check_tensors, shapes_of
from ..shapes_only import shapes_only
from .checkpoint import MODEL_FILE
from .config import VoxCPM2Config
from .locdit import FlowMatching, LocDiT, guided_step
from .minicpm import LongRope

PREFIX = "feat_decoder."
MU_TOKENS = 2


class DitRound(nn.Module):
    """One evaluation, its guidance and its Euler step.

    Every row has a time, a width and a guidance of its own, so requests with any number of steps, in any round, share
    a batch. Guidance 1 takes the conditioned velocity as it is.
    """

    def __init__(self, solver: FlowMatching) -> None:
        super().__init__()
        self.estimator, self.mean_mode = solver.estimator, solver.mean_mode

    def forward(self, x: Tensor, mu: Tensor, cond: Tensor, time: Tensor, width: Tensor, cfg_value: Tensor) -> Tensor:
        """x (B, P, D), mu (B, 2h), cond (B, P, D), time, width and cfg_value (B, 1) -> next x (B, P, D)."""
        time, width, cfg_value = time.squeeze(1), width.squeeze(1), cfg_value.squeeze(1)
        embedded = self.estimator.embed_time(time, width if self.mean_mode else torch.zeros_like(width))
        return self.advance(x, mu, cond, embedded, width, cfg_value)

    def advance(self, x: Tensor, mu: Tensor, cond: Tensor, time: Tensor, width: Tensor, cfg_value: Tensor) -> Tensor:
        """The same with an embedded time (B, h), width and cfg_value (B,)."""
        tokens = mu.view(mu.shape[0], self.estimator.mu_tokens, self.estimator.size)
        velocity = self.estimator(
            torch.cat((x, x)),
            torch.cat((tokens, torch.zeros_like(tokens))),
            torch.cat((time, time)).unsqueeze(1),
            self.estimator.cond_proj(torch.cat((cond, cond))),
        )
        return guided_step(velocity, x, cfg_value, width)


class DitSolver(nn.Module):
    """All rounds of up to ``most`` steps, one after the other: rows with fewer end with rounds that change nothing."""

    embedded: Tensor
    widths: Tensor

    def __init__(self, solver: FlowMatching, most: int) -> None:
        super().__init__()
        self.round = DitRound(solver)
        embedded, widths, _ = solver.tables(most)
        self.register_buffer("embedded", embedded)
        self.register_buffer("widths", widths)

    def forward(self, noise: Tensor, mu: Tensor, cond: Tensor, cfg_value: Tensor, steps: Tensor) -> Tensor:
        """noise (B, P, D), mu (B, 2h), cond (B, P, D), cfg_value (B, 1), steps (B, 1) int32 -> latents (B, P, D)."""
        counts = steps.squeeze(1).long()
        times, widths = self.embedded[counts], self.widths[counts]
        x, guidance = noise, cfg_value.squeeze(1)
        for index in range(self.widths.shape[1]):
            x = self.round.advance(x, mu, cond, times[:, index], widths[:, index], guidance)
        return x


def load_solver(folder: Path) -> FlowMatching:
    """The DiT and its solver alone, in fp32 on the CPU; nothing else of the talker is read.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the configuration or a tensor does not fit.
    """
    config = VoxCPM2Config.from_checkpoint(folder)
    path = folder / MODEL_FILE
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {folder.name!r} has no {MODEL_FILE}")
    with shapes_only():
        stack = config.local_stack(config.dit_config)
        dit = LocDiT(stack, feat_dim=config.feat_dim, patch_size=config.patch_size, mu_tokens=MU_TOKENS)
        solver = FlowMatching(dit, mean_mode=config.dit_config.mean_mode)
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(PREFIX)]  # noqa: SIM118
        tensors = {name.removeprefix(PREFIX): file.get_tensor(name) for name in names}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_tensors(shapes_of(solver), found, f"{path.name} of checkpoint {folder.name!r}")
    solver.load_state_dict({name: t.float() for name, t in tensors.items()}, assign=True)
    for module in solver.modules():
        if isinstance(module, LongRope):
            module.build_tables("cpu")
    solver.estimator.decoder.fuse()
    return solver.eval().requires_grad_(False)
