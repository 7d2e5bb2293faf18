"""How good and how safe a policy is, on an environment of its own."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from rlpd_gx.learner import Learner
from rlpd_gx.loop.environments import Environments
from rlpd_gx.types import Status, Verdict


@dataclass
class ShadowCounts:
    """What was proposed and what was done, read only from verdicts."""

    steps: int = 0
    interventions: int = 0
    forbidden_proposals: int = 0
    """g = 0 at the proposed action."""
    near_misses: int = 0
    """A proposal that some rule allowed only just."""
    forbidden_executed: int = 0
    """g = 0 at the executed action: without a guard, or where no action was allowed."""
    inevitable: int = 0
    fallbacks: int = 0
    unsafe_events: int = 0

    def add(self, verdict: Verdict | None, near_miss: float, unsafe_event: bool) -> None:
        """Count one step."""
        self.steps += 1
        self.unsafe_events += unsafe_event
        if verdict is None:
            return
        margin = verdict.margin
        self.interventions += verdict.intervened
        self.forbidden_proposals += margin < 0
        self.near_misses += 0 <= margin < near_miss
        self.inevitable += verdict.status is Status.INEVITABLE
        self.fallbacks += verdict.status is Status.FALLBACK
        ran_as_proposed = verdict.action is not verdict.suggestion or not verdict.intervened
        self.forbidden_executed += (margin < 0 and ran_as_proposed) or verdict.status is Status.INEVITABLE

    def rates(self) -> dict[str, float]:
        """Each count as a share of steps."""
        steps = max(self.steps, 1)
        return {f"{name}_rate": count / steps for name, count in asdict(self).items() if name != "steps"}


@dataclass
class Evaluation:
    """Scores [episodes] and counts of an evaluation."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    success_steps: list[int] = field(default_factory=list)
    """Of each episode, where the environment tells of success."""
    counts: ShadowCounts = field(default_factory=ShadowCounts)

    def row(self) -> dict[str, Any]:
        """As a row of metrics."""
        return {
            "returns": self.returns,
            "mean": float(np.mean(self.returns)),
            "lengths": self.lengths,
            **self._success(),
            **asdict(self.counts),
        }

    def _success(self) -> dict[str, Any]:
        steps = self.success_steps
        return {"success_rate": float(np.mean(np.array(steps) > 0)), "success_steps": steps} if steps else {}


def evaluate(
    learner: Learner,
    environments: Environments,
    episodes: int,
    seed: int,
    *,
    sample: bool,
    near_miss: float = 0.05,
) -> Evaluation:
    """Play whole episodes. Nothing is learned, and no generator of the run is touched."""
    result = Evaluation()
    generator = torch.Generator(learner.device).manual_seed(seed)
    needs_sets = learner.config.execution == "resample"
    for episode in range(episodes):
        environments.reset(np.ones(1, bool), [seed + episode])
        finished = False
        while not finished:
            sets = environments.safe_sets() if needs_sets else None
            proposed = learner.act(environments.observation, sets, explore=sample, generator=generator)
            transition = environments.step(proposed, sets)
            if transition.executed[0]:
                result.counts.add(transition.verdicts[0], near_miss, bool(transition.unsafe_event[0]))
            for done in environments.finished:
                result.returns.append(done.score)
                result.lengths.append(done.length)
                result.success_steps += [] if done.success_steps is None else [done.success_steps]
                finished = True
    return result
