"""Counter-based noise: a value is a function of seed, frame and lane, and never depends on what else runs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
# Weyl increments and multipliers of 32-bit mixers with full avalanche (triple32, hash-prospector, public domain).
_LANE, _FRAME, _GROUP = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_MIX = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))


def _mix(x: Tensor) -> Tensor:
    for shift, multiplier in _MIX:
        x = ((x ^ (x >> shift)) * multiplier) & _MASK
    return x ^ (x >> 14)


def gaussian(seed: Tensor, frame: Tensor, lanes: int) -> Tensor:
    """Standard normal noise by Box and Muller.

    Args:
        seed: (B,) int64, the 64 bits of the request's seed.
        frame: (B,) int64, index of the frame in its stream.
        lanes: values wanted for each frame.

    Returns:
        (B, lanes) fp32.
    """
    low, high = seed & _MASK, (seed >> 32) & _MASK
    key = _mix(_mix(low) ^ _mix((high + _LANE) & _MASK) ^ ((frame * _FRAME) & _MASK))
    lane = torch.arange(2 * lanes, device=seed.device, dtype=torch.int64)
    bits = _mix(_mix((key[:, None] + lane * _LANE) & _MASK) ^ _mix((low + frame)[:, None] & _MASK))
    uniform = ((bits >> 8).to(torch.float32) + 0.5) * 2.0**-24
    radius = torch.sqrt(-2.0 * torch.log(uniform[:, :lanes]))
    return radius * torch.cos(2.0 * math.pi * uniform[:, lanes:])


def uniforms(seed: Tensor, frame: Tensor, groups: range, lanes: int) -> Tensor:
    """Uniform values between 0 and 1, neither included: the double logarithm of each is finite.

    Args:
        seed: (B,) int64, the 64 bits of the request's seed.
        frame: (B,) int64, index of the frame in its stream.
        groups: codebooks of the frame that are to be drawn.
        lanes: values wanted for each of them.

    Returns:
        (B, len(groups), lanes) fp32, multiples of 2**-24.
    """
    low, high = seed & _MASK, (seed >> 32) & _MASK
    key = _mix(_mix(low) ^ _mix((high + _LANE) & _MASK) ^ ((frame * _FRAME) & _MASK))
    group = torch.arange(groups.start, groups.stop, groups.step, device=seed.device, dtype=torch.int64)
    keys = _mix((key[:, None] + (group + 1) * _GROUP) & _MASK)
    lane = torch.arange(lanes, device=seed.device, dtype=torch.int64)
    bits = _mix(_mix((keys[..., None] + lane * _LANE) & _MASK) ^ _mix((low + frame)[:, None, None] & _MASK))
    # 23 bits and a half: with one bit more the largest would round to 1.
    return ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
