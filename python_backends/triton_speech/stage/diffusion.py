"""The diffusion stage: conditions of any streams in, their next latent patches out. It keeps nothing of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ..families.registry import find_checkpoint, load_diffusion_family, optional_part
from . import catalogue
from .device import choose_device, use_device
from .diffusion_parameters import DiffusionParameters
from .diffusion_rows import DiffusionRows, Limits, join, read_rows
from .metrics import Metrics
from .triton import checkpoints_folder, respond, respond_error, start_stage


class DiffusionStage:
    """Binds the diffusion of a family's talker to Triton: not decoupled, batched by Triton.

    ``execute`` answers before it returns, so Triton itself tells those that wait when this process has died.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_diffusion_family(self.family)
        self._parameters = parameters = DiffusionParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, family.ARCHITECTURE)
        self._device = choose_device(parameters, args)
        placed = {"device": self._device, "cfg_cutoff_ratio": parameters.cfg_cutoff_ratio}
        if parameters.runtime == "onnxruntime":
            load = optional_part(family, "load_onnx_diffusion", "parameter runtime is 'onnxruntime'")
            self._diffusion = load(folder, folder / parameters.onnx_graphs, **placed)
        else:
            dtype = parameters.dtype if parameters.dtype != "auto" else "float32" if self._device == "cpu" else None
            most = parameters.deterministic_rows if parameters.deterministic else _max_batch(args)
            graphs = most if parameters.graphs else 0
            self._diffusion = family.load_diffusion(folder, dtype=dtype, graphs=graphs, **placed)
        self._limits = Limits(
            self._diffusion.mu_size,
            self._diffusion.patch_shape,
            tuple(family.SAMPLING_INPUTS),
            family.make_sampling,
            parameters.max_inference_steps,
        )
        self._diffusion.warm_up()
        self._metrics = Metrics(catalogue.DIFFUSION, args)
        use = self._diffusion.graph_use
        self._metrics.follow(catalogue.REPLAYS, "diffusion", read=lambda: use.replays)
        self._metrics.follow(catalogue.FALL_BACKS, "diffusion", read=lambda: use.fallbacks)

    def execute(self, requests: list[Any]) -> list[Any]:
        use_device(self._device)
        answers: list[Any] = [None] * len(requests)
        asked: dict[int, DiffusionRows] = {}
        for number, request in enumerate(requests):
            try:
                rows = read_rows(request, self._limits)
                if rows is None:
                    answers[number] = respond({}, ())
                else:
                    asked[number] = rows
            except Exception as error:
                answers[number] = self._failed(request, error)
        if asked:
            together = join(list(asked.values()))
            latents, errors = self._solve_all(together)
            start = 0
            for number, rows in asked.items():
                stop = start + len(rows.keys)
                failed = [error for error in errors[start:stop] if error is not None]
                if failed:
                    answers[number] = self._failed(requests[number], failed[0])
                else:
                    self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.ANSWERED)
                    made = {"LATENT": latents[start:stop].numpy()}
                    answers[number] = respond(made, requests[number].requested_output_names())
                start = stop
        return answers

    def finalize(self) -> None:
        self._metrics.close()

    def _solve_all(self, together: DiffusionRows) -> tuple[torch.Tensor, list[Exception | None]]:
        """Latents (N, P, D) of all rows, and for each row what went wrong in its group."""
        latents = torch.zeros(len(together.keys), *self._diffusion.patch_shape)
        errors: list[Exception | None] = [None] * len(together.keys)
        for key, group in together.groups().items():
            size = self._parameters.deterministic_rows if self._parameters.deterministic else len(group)
            for start in range(0, len(group), size):
                piece = group[start : start + size]
                # All solved batches have one shape where that is asked for; whose rows are added does not matter.
                padded = piece + piece[:1] * (size - len(piece)) if self._parameters.deterministic else piece
                try:
                    made = self._diffusion.solve(together.pick(padded), key)
                    latents[piece] = made[: len(piece)]
                except Exception as error:
                    for row in piece:
                        errors[row] = error
                self._metrics.count(catalogue.BATCHES)
                self._metrics.count(catalogue.BATCH_STREAMS, by=len(piece))
        return latents, errors

    def _failed(self, request: Any, error: Exception) -> Any:
        self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.how_it_failed(error))
        return respond_error(error, request.request_id())


def _max_batch(args: Mapping[str, str]) -> int:
    """Requests that Triton gathers."""
    return int(json.loads(args["model_config"])["max_batch_size"])
