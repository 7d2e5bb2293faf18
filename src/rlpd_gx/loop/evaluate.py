"""Evaluation: whole episodes of a policy in an environment of its own."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from rlpd_gx.learner import QLearner
from rlpd_gx.loop.environments import Environments
from rlpd_gx.metrics.episodes import success
from rlpd_gx.trees import Json
from rlpd_gx.types import Array, Episode, Observation, Tally, Transition


@dataclass
class Evaluation:
    """Episodes, and what was proposed and executed in them."""

    episodes: list[Episode] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def returns(self) -> list[float]:
        """The score of each episode."""
        return [episode.score for episode in self.episodes]

    def row(self) -> Json:
        """As a row of metrics."""
        lengths = [episode.length for episode in self.episodes]
        return {
            "returns": self.returns,
            "mean": float(np.mean(self.returns)),
            "lengths": lengths,
            "steps": sum(lengths),
            **self._success(),
            **self.tally.as_dict(),
        }

    def _success(self) -> Json:
        steps = [episode.success_steps for episode in self.episodes if episode.success_steps is not None]
        return {**success(self.episodes), "success_steps": steps} if steps else {}

    def state(self) -> Json:
        """For a checkpoint."""
        return {"episodes": [asdict(episode) for episode in self.episodes], "tally": self.tally.as_dict()}

    @classmethod
    def from_state(cls, state: Json) -> "Evaluation":
        """The inverse of `state`."""
        return cls([Episode(**values) for values in state["episodes"]], Tally.from_dict(state["tally"]))


class Step(NamedTuple):
    """What a policy saw and proposed, and what came of it."""

    observation: Observation
    proposed: Array
    transition: Transition


@dataclass(frozen=True)
class Player:
    """A policy at an environment."""

    propose: Callable[[Observation, Array | None], Array]
    """Observations [1, ...] and codes of safe sets, or None -> proposed actions [1, ...]."""
    environments: Environments
    from_safe_sets: bool
    """Whether proposals are drawn from the safe set."""

    def step(self) -> Step:
        """One step. Only where the guard enforces a safe set are proposals drawn from it."""
        environments = self.environments
        enforced = any(layer.guardian.mode == "enforce" for layer in environments.guarded)
        sets = environments.safe_sets() if self.from_safe_sets and enforced else None
        seen = environments.observation
        proposed = self.propose(seen, sets)
        return Step(seen, proposed, environments.step(proposed, sets))

    def episodes(self, count: int, seed: int) -> Iterator[Step]:
        """The steps of whole episodes, each from a seed of its own; `environments.finished` holds what has ended."""
        for episode in range(count):
            self.environments.reset(np.ones(1, bool), [seed + episode])
            ended = False
            while not ended:
                yield self.step()
                ended = bool(self.environments.finished)


def evaluate(
    learner: QLearner, environments: Environments, episodes: int, seed: int, *, sample: bool
) -> Evaluation:
    """Play whole episodes. Nothing is learned, and no generator of the run is touched."""
    result = Evaluation()
    generator = torch.Generator(learner.device).manual_seed(seed)
    propose = partial(learner.act, explore=sample, generator=generator)
    player = Player(propose, environments, learner.config.execution == "resample")
    for step in player.episodes(episodes, seed):
        count(result.tally, step.transition, environments)
        result.episodes += environments.finished
    return result


def count(tally: Tally, transition: Transition, environments: Environments) -> None:
    """Add the proposals of a transition to a tally, and the episodes that ended with it."""
    for i, verdict in enumerate(transition.verdicts):
        if transition.executed[i]:
            tally.add(verdict, environments.near_miss, unsafe_event=bool(transition.unsafe_event[i]))
        else:
            tally.add_stop(transition.stop_reasons[i])
    for done in environments.finished:
        tally.end_episode(corrected=done.corrections > 0, unsafe_events=done.unsafe_events)
