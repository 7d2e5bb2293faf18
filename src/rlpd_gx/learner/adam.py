"""Adam as one fused kernel over a list of parameters; an update that is not finite is not applied."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlpd_gx.errors import GxError

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Diverged(GxError):
    """A loss or a gradient is not finite. Nothing of that update was applied."""

    def __init__(self, what: str, minibatch: int) -> None:
        super().__init__(f"{what} is not finite in minibatch {minibatch} of the block")
        self.minibatch = minibatch


class Adam:
    """The moments of some parameters. `torch.optim.Adam` computes the same, and spends longer around its kernel."""

    def __init__(self, name: str, parameters: Sequence[Tensor], learning_rate: float) -> None:
        self.name, self.parameters, self.learning_rate = name, list(parameters), learning_rate
        self.mean = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self.parameters]
        self.square = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    def step(self, loss: Tensor, minibatch: int) -> None:
        """Descend the loss; raises `Diverged` if it or its gradient is not finite."""
        if not self.descend(loss):
            raise self.diverged(minibatch)

    def diverged(self, minibatch: int) -> Diverged:
        """What to raise where `descend` said no."""
        return Diverged(f"the loss of the {self.name} or its gradient", minibatch)

    def descend(self, loss: Tensor) -> Tensor:
        """Descend the loss, also inside a compiled graph; says whether it and its gradient were finite.

        If they were not, nothing has moved.
        """
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            finite = (loss + torch.stack(torch._foreach_norm(list(gradients))).sum()).isfinite()
            if torch.compiler.is_compiling():
                self._move_where(finite, gradients)
            elif finite:
                self._move(gradients)
        return finite

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], minibatch: int) -> None:
        """One step along these gradients."""
        if not torch.stack(torch._foreach_norm(list(gradients))).sum().isfinite():
            raise Diverged(f"the gradient of the {self.name}", minibatch)
        self._move(gradients)

    def _move(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_add_(self.steps, 1)
        torch._fused_adam_(
            self.parameters,
            list(gradients),
            self.mean,
            self.square,
            [],
            self.steps,
            lr=self.learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _move_where(self, finite: Tensor, gradients: Sequence[Tensor]) -> None:
        """The same step in plain operations, which a compiler joins; none if `finite` is false."""
        every = zip(self.parameters, gradients, self.mean, self.square, self.steps, strict=True)
        for parameter, gradient, mean, square, step in every:
            step += finite
            # Stacked, they are computed once; alone, the compiler would compute them again for every few numbers.
            powers = torch.stack([beta**step for beta in BETAS])
            mean += torch.where(finite, (1 - BETAS[0]) * (gradient - mean), 0.0)
            square += torch.where(finite, (1 - BETAS[1]) * (gradient.square() - square), 0.0)
            size = (square / (1 - powers[1])).sqrt() + EPSILON
            parameter -= torch.where(finite, self.learning_rate / (1 - powers[0]) * mean / size, 0.0)

    def state(self) -> dict[str, Any]:
        """The moments by the number of their parameter, for a checkpoint."""
        every = zip(self.steps, self.mean, self.square, strict=True)
        return {
            str(i): {"step": s.clone(), "exp_avg": m, "exp_avg_sq": v} for i, (s, m, v) in enumerate(every)
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        for i, moments in enumerate(zip(self.steps, self.mean, self.square, strict=True)):
            for ours, name in zip(moments, ("step", "exp_avg", "exp_avg_sq"), strict=True):
                ours.copy_(state[str(i)][name])
