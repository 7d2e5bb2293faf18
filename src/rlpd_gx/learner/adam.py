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
        gradients = torch.autograd.grad(loss, self.parameters)
        if not torch.isfinite(loss):
            raise Diverged(f"the loss of the {self.name}", minibatch)
        self.apply(gradients, minibatch)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor], minibatch: int) -> None:
        """One step along these gradients."""
        if not torch.stack(torch._foreach_norm(list(gradients))).sum().isfinite():
            raise Diverged(f"the gradient of the {self.name}", minibatch)
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
