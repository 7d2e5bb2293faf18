"""Evaluation: whole episodes of a policy in an environment of its own."""

from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from rlpd_gx.learner import QLearner
from rlpd_gx.loop.environments import Environments
from rlpd_gx.trees import Json
from rlpd_gx.types import Episode, Tally, Transition


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
        return {"success_rate": float(np.mean(np.array(steps) > 0)), "success_steps": steps} if steps else {}

    def state(self) -> Json:
        """For a checkpoint."""
        return {"episodes": [asdict(episode) for episode in self.episodes], "tally": self.tally.as_dict()}

    @classmethod
    def from_state(cls, state: Json) -> "Evaluation":
        """The inverse of `state`."""
        return cls([Episode(**values) for values in state["episodes"]], Tally.from_dict(state["tally"]))


def evaluate(
    learner: QLearner,
    environments: Environments,
    episodes: int,
    seed: int,
    *,
    sample: bool,
) -> Evaluation:
    """Play whole episodes. Nothing is learned, and no generator of the run is touched."""
    result = Evaluation()
    generator = torch.Generator(learner.device).manual_seed(seed)
    needs_sets = learner.config.execution == "resample"
    for episode in range(episodes):
        environments.reset(np.ones(1, bool), [seed + episode])
        while len(result.episodes) <= episode:
            sets = environments.safe_sets() if needs_sets else None
            proposed = learner.act(environments.observation, sets, explore=sample, generator=generator)
            transition = environments.step(proposed, sets)
            count(result.tally, transition, environments)
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
