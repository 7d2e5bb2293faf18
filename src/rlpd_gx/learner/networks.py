"""Networks: an ensemble with stacked parameters, and encoders from observations to features."""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlpd_gx.config import LearnerConfig
from rlpd_gx.errors import GxError
from rlpd_gx.trees import named_leaves

LARGEST = 10.0  # standard deviations: clips inputs far outside the range that calibration saw
PIXEL_FEATURES = 256  # outputs of the pixel encoder
SMALLEST_SPREAD = 1e-5  # a standard deviation below this is rounding error

Observed = Tensor | Mapping[str, Tensor]


class Ensemble(nn.Module):
    """`members` multi-layer perceptrons with stacked parameters: one batched matrix product for each layer."""

    def __init__(
        self, members: int, sizes: Sequence[int], *, layer_norm: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            limit = math.sqrt(6 / (fan_in + fan_out))
            weight = torch.empty(members, fan_in, fan_out).uniform_(-limit, limit, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, fan_out)))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """x [B, in] -> [members, B, out], of all or of some members (int64 indices)."""
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if members is not None:
                weight, bias = weight[members], bias[members]
            if layer:
                x = F.layer_norm(x, x.shape[-1:]) if self.layer_norm else x
                x = F.relu_(x)
            else:
                x = x.expand(len(weight), *x.shape)
            x = torch.baddbmm(bias, x, weight)
        return x


class FlatEncoder(nn.Module):
    """Flattened observations; integers are divided by the end of their range. `calibrate` sets centre and scale.

    Of an array [..., n], `observed` selects some of the n entries; empty means all. With `changes`, a stack
    [frames, ...] becomes its newest frame and the differences between consecutive frames.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, space: gym.Space, observed: Sequence[int] = (), changes: bool = False) -> None:
        super().__init__()
        self.scale = {name: _unit(part) for name, part in named_leaves(space).items()}
        self.observed, self.changes = _entries(space, observed), changes
        if changes and not (isinstance(space, gym.spaces.Box) and len(space.shape) > 1):
            raise GxError(f"changes needs stacks of frames; observations here are {space}, so leave it out")
        self.features = int(gym.spaces.flatdim(space))
        if self.observed:
            self.features = self.features // space.shape[-1] * len(self.observed)  # type: ignore[index]
        self.register_buffer("centre", torch.zeros(self.features))
        self.register_buffer("spread", torch.ones(self.features))

    def forward(self, observation: Observed) -> Tensor:
        """[B, ...], or a dict of such -> [B, features]."""
        return ((self._flat(observation) - self.centre) / self.spread).clamp(-LARGEST, LARGEST)

    def calibrate(self, observations: Sequence[Observed]) -> None:
        """Give these observations [B, ...] mean 0 and standard deviation 1; constant entries keep their scale."""
        rows = torch.cat([self._flat(observation) for observation in observations])
        spread, self.centre = torch.std_mean(rows, dim=0)
        self.spread = torch.where(spread > SMALLEST_SPREAD, spread, 1.0)

    def _flat(self, observation: Observed) -> Tensor:
        parts = named_leaves(observation)
        rows = [self._visible(parts[name]).flatten(1) * self.scale[name] for name in sorted(parts)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def _visible(self, rows: Tensor) -> Tensor:
        """What the networks see of one array."""
        rows = (rows[..., self.observed] if self.observed else rows).float()
        return torch.cat([rows[:, -1:], rows.diff(dim=1)], dim=1) if self.changes else rows


class PixelEncoder(nn.Module):
    """Stacked images [B, C, 84, 84] -> features, by three convolutions; shared by actor and critics."""

    def __init__(self, space: gym.spaces.Box, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.features = features
        channels = space.shape[0]
        self.convolutions = nn.ModuleList(
            [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            size = self._convolve(torch.zeros(1, *space.shape)).shape[1]
        self.linear = nn.Linear(size, features)
        for parameter in self.parameters():  # torch's own initial weights use the global generator
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 0
            with torch.no_grad():
                bound = math.sqrt(3 / fan_in) if fan_in else 0.0
                parameter.uniform_(-bound, bound, generator=generator) if fan_in else parameter.zero_()

    def forward(self, observation: Tensor) -> Tensor:
        """[B, C, H, W] uint8 -> [B, features]."""
        x = observation.to(memory_format=torch.channels_last, dtype=torch.float32) / 255
        return torch.tanh(F.layer_norm(self.linear(self._convolve(x)), (self.features,)))

    def _convolve(self, x: Tensor) -> Tensor:
        for layer in self.convolutions:
            x = F.relu_(layer(x))
        return x.flatten(1)


Encoder = FlatEncoder | PixelEncoder


def compile_in_place(module: nn.Module, device: torch.device) -> None:
    """Compile a module with torch; its parameters and their names stay."""
    if device.type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++"))):
        raise GxError("compile needs a C++ compiler, and there is no g++ or clang++; leave the setting out")
    module.compile(dynamic=False)


def encoder_for(space: gym.Space, config: LearnerConfig, generator: torch.Generator) -> Encoder:
    """The encoder for an observation space: images are [C, H, W] bytes, everything else is flattened."""
    if isinstance(space, gym.spaces.Box) and is_image(space):
        if config.observed or config.changes:
            raise GxError("observed and changes are for states and RAM; observations here are images")
        return PixelEncoder(space, PIXEL_FEATURES, generator)
    return FlatEncoder(space, config.observed, config.changes)


def is_image(space: gym.Space) -> bool:
    """Whether observations are stacked images of bytes, large enough for the convolutions."""
    return (
        isinstance(space, gym.spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and min(space.shape[1:]) >= 36
    )


def random_shift(images: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Each image of [B, C, H, W] moved by up to `pixels` on both axes, with its border repeated."""
    if not pixels:
        return images
    count, _, height, width = images.shape
    shift = torch.randint(-pixels, pixels + 1, (2, count, 1), generator=generator, device=generator.device)
    rows, columns = (
        (torch.arange(size) + moved).clamp_(0, size - 1).to(images.device)
        for size, moved in zip((height, width), shift.cpu(), strict=True)
    )
    every = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
    return images[every, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _entries(space: gym.Space, observed: Sequence[int]) -> list[int]:
    """`observed` as a list; an error if the space has no such entries."""
    if not observed:
        return []
    if not isinstance(space, gym.spaces.Box) or not space.shape:
        raise GxError(f"observed chooses entries of an array; observations here are {space}, so leave it out")
    if absent := [entry for entry in observed if not 0 <= entry < space.shape[-1]]:
        raise GxError(f"observed has {absent[0]}, but observations have entries 0 to {space.shape[-1] - 1}")
    return list(observed)


def _unit(space: gym.Space) -> float:
    """The factor that brings integers of a space to at most 1 in size; 1 for floats."""
    if isinstance(space, gym.spaces.Discrete):
        raise GxError(
            "the Learner reads arrays, not Discrete observations; wrap the environment "
            "with gymnasium.wrappers.FlattenObservation"
        )
    if not isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary):
        raise GxError(f"the Learner reads Box observations or dicts of them, not {space}")
    whole = space.dtype is not None and np.issubdtype(space.dtype, np.integer)
    largest = float(np.max(np.abs(space.high))) if isinstance(space, gym.spaces.Box) and whole else 1.0
    return 1.0 / max(largest, 1.0)
