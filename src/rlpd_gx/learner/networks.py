"""Networks: an ensemble with stacked parameters, and encoders from observations to features."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlpd_gx.compilers import has_cpp_compiler
from rlpd_gx.errors import GxError
from rlpd_gx.files import user_cache
from rlpd_gx.trees import named_leaves

LARGEST = 10.0  # standard deviations: clips inputs far outside the range that calibration saw
PIXEL_FEATURES = 256  # outputs of the pixel encoder
MOST_IMAGES = 256  # of one array that are averaged: enough for a mean
SMALLEST_SPREAD = 1e-5  # a standard deviation below this is rounding error

LEAVES = gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
Observed = Tensor | Mapping[str, Tensor]
Function = TypeVar("Function", bound=Callable[..., Any])


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
        # The same parameters: looking them up in a ParameterList takes longer than the product of a small layer.
        self.layers = tuple(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """x [B, in] -> [members, B, out], of all or of some members (int64 indices)."""
        for layer, (weight, bias) in enumerate(self.layers):
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
    """Observations in one row: numbers as they are, integers divided by the end of their range, categories one-hot.

    `calibrate` sets centre and scale.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, space: gym.Space) -> None:
        super().__init__()
        self.spaces = named_leaves(space)
        self.scale = {name: _unit(part) for name, part in self.spaces.items()}
        self.features = int(gym.spaces.flatdim(space))
        self.register_buffer("centre", torch.zeros(self.features))
        self.register_buffer("spread", torch.ones(self.features))

    def forward(self, observation: Observed) -> Tensor:
        """[B, ...], or a dict of such -> [B, features]."""
        return ((self._flat(observation) - self.centre) / self.spread).clamp(-LARGEST, LARGEST)

    def calibrate(self, observations: Iterable[Observed]) -> None:
        """Give these observations [B, ...] mean 0 and standard deviation 1; constant entries keep their scale."""
        rows = torch.cat([self._flat(observation) for observation in observations])
        spread, self.centre = torch.std_mean(rows, dim=0)
        self.spread = torch.where(spread > SMALLEST_SPREAD, spread, 1.0)

    def _flat(self, observation: Observed) -> Tensor:
        parts = named_leaves(observation)
        rows = [self._row(name, parts[name]) for name in sorted(parts)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def _row(self, name: str, values: Tensor) -> Tensor:
        """One array of the observation [B, ...] -> [B, k]."""
        space = self.spaces[name]
        if isinstance(space, gym.spaces.Discrete):
            return F.one_hot(values.long() - int(space.start), int(space.n)).float()
        if isinstance(space, gym.spaces.MultiDiscrete):
            digits = (values.long() - torch.as_tensor(space.start, device=values.device)).flatten(1)
            each = [F.one_hot(digits[:, i], int(n)) for i, n in enumerate(space.nvec.ravel())]
            return torch.cat(each, dim=1).float()
        return values.float().flatten(1) * self.scale[name]


class PixelEncoder(nn.Module):
    """Stacked images [B, C, 84, 84] -> features, by three convolutions; shared by actor and critics.

    Convolutions see how an image differs from the mean image. With the still background in it, which is most of an
    image, the features of all images can become the same (results/pixels/encoder.py).
    """

    centre: Tensor

    def __init__(self, space: gym.spaces.Box, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.features = features
        channels = space.shape[0]
        self.register_buffer("centre", torch.full(space.shape, 0.5))
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
        x = observation.to(memory_format=torch.channels_last, dtype=torch.float32) / 255 - self.centre
        return torch.tanh(F.layer_norm(self.linear(self._convolve(x)), (self.features,)))

    def calibrate(self, observations: Iterable[Tensor]) -> None:
        """Take the mean of these images [B, C, H, W] as the centre; one array at a time, since they are large."""
        total, count = torch.zeros_like(self.centre), 0
        for images in observations:
            some = images[:MOST_IMAGES]
            total, count = total + some.sum(dim=0, dtype=torch.float32), count + len(some)
        self.centre = total / (255 * count)

    def _convolve(self, x: Tensor) -> Tensor:
        for layer in self.convolutions:
            x = F.relu_(layer(x))
        return x.flatten(1)


Encoder = FlatEncoder | PixelEncoder


def compiled(function: Function, device: torch.device) -> Function:
    """The function as one graph of torch; what was compiled is kept for later processes."""
    if device.type == "cpu" and not has_cpp_compiler():
        raise GxError("compile needs a C++ compiler, and there is no g++ or clang++; leave the setting out")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_cache("compiled")))
    torch._dynamo.config.trace_autograd_ops = True  # the graph may hold its gradient
    return torch.compile(function, fullgraph=True, dynamic=False)  # type: ignore[return-value]


def encoder_for(space: gym.Space, generator: torch.Generator) -> Encoder:
    """The encoder for an observation space: images are [C, H, W] bytes, everything else is flattened."""
    if isinstance(space, gym.spaces.Box) and is_image(space):
        return PixelEncoder(space, PIXEL_FEATURES, generator)
    return FlatEncoder(space)


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
    drawn = torch.randint(2 * pixels + 1, (2, count), generator=generator, device=generator.device)
    rows, columns = drawn.to(images.device)
    windows = _bordered(_bordered(images, 2, pixels), 3, pixels).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(count, device=images.device), :, rows, columns]


def _bordered(images: Tensor, axis: int, pixels: int) -> Tensor:
    """Images with the first and the last line of an axis repeated; several times faster than looking them up."""
    size = [pixels if i == axis else n for i, n in enumerate(images.shape)]
    first, last = (images.narrow(axis, place, 1).expand(size) for place in (0, -1))
    return torch.cat([first, images, last], dim=axis)


def _unit(space: gym.Space) -> float:
    """The factor that brings integers of a space to at most 1 in size; 1 for floats."""
    if not isinstance(space, LEAVES):
        raise GxError(f"the Learner reads numbers, categories and dicts or tuples of them, not {space}")
    whole = space.dtype is not None and np.issubdtype(space.dtype, np.integer)
    largest = float(np.max(np.abs(space.high))) if isinstance(space, gym.spaces.Box) and whole else 1.0
    return 1.0 / max(largest, 1.0)
