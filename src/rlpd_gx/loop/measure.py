"""Measurements of a policy in its task: plays what they need, once, and hands it to the functions in `metrics`."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rlpd_gx import trees
from rlpd_gx.envs.actions import ActionView
from rlpd_gx.envs.description import describe, game_of
from rlpd_gx.learner import QLearner
from rlpd_gx.learner.inspection import values_and_targets, values_at
from rlpd_gx.loop import behaviour, probes, visits
from rlpd_gx.loop.environments import Environments
from rlpd_gx.loop.evaluate import Player, count
from rlpd_gx.loop.resume import trained
from rlpd_gx.loop.task import Task
from rlpd_gx.metrics import MEASUREMENTS, METRICS, measure_subject
from rlpd_gx.metrics.subject import Found, Support, Times, Unavailable, Values
from rlpd_gx.metrics.values import monte_carlo
from rlpd_gx.trees import Tree
from rlpd_gx.types import Array, Batch, Episode, Observation, Tally

SEED = 4_000_000  # of the measured episodes: neither training nor its evaluations start from them
KEPT_STATES = 1_000  # visited states on which the policy is compared with the behaviour clone


class Policy(Protocol):
    """Whatever proposes actions."""

    def act(
        self,
        observation: Observation,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Actions [L, ...] for observations [L, ...]; safe sets matter only to those that draw from them."""


class ForeignPolicy:
    """A policy of another library: a function of one observation, or an object with `predict` as in SB3.

    It returns actions as the environment takes them; `act` returns them as the Learner chooses them.
    """

    def __init__(self, policy: Any, actions: ActionView) -> None:
        self._actions = actions
        self._predict = getattr(policy, "predict", None)
        self._function: Callable[[Tree], Any] = getattr(policy, "propose", policy)

    def act(
        self,
        observation: Observation,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Actions [L, ...], one observation at a time."""
        rows = [trees.index(observation, i) for i in range(len(next(trees.leaves(observation))))]
        if self._predict is not None:
            taken = [self._predict(row, deterministic=not explore)[0] for row in rows]
        else:
            taken = [self._function(row) for row in rows]
        return self._actions.chosen(np.stack([np.asarray(action) for action in taken]))


@dataclass
class PlayedEpisodes:
    """Episodes of a policy, with a thinned record of the states it visited."""

    episodes: list[Episode] = field(default_factory=list)
    rewards: list[Array] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    visited: list[tuple[Tree, Array, Array]] = field(default_factory=list)
    """Observation, executed action and safe set."""


@dataclass(eq=False)
class PolicySubject:
    """A policy in a task, as measurements ask for it (`metrics.subject.Subject`)."""

    task: Task
    policy: Policy
    learner: QLearner | None = None
    """With the critics, where the policy is a Learner's."""
    folder: Path | None = None
    """The run, for what depends on its training."""
    episode_count: int = 10
    state_count: int = 50
    horizon: int = 500
    replay_count: int | None = None
    """Critical states that are replayed to the first unsafe event; None: all."""
    seed: int = SEED
    _played: dict[bool, PlayedEpisodes] = field(default_factory=dict)
    _times: dict[bool, Times] = field(default_factory=dict)

    @property
    def game(self) -> str | None:
        """The Atari game, if it is one."""
        return game_of(self.task.config.run.env)

    # --- episodes ----------------------------------------------------------------------------------------

    def played(self, *, guarded: bool = True) -> PlayedEpisodes:
        """Evaluation episodes with the guard, or the same without it."""
        if guarded not in self._played:
            environments = self._environments(self.task if guarded else probes.unguarded(self.task))
            self._played[guarded] = self._play(environments)
            environments.close()
        return self._played[guarded]

    def _environments(self, task: Task, *, evaluation: bool = True) -> Environments:
        return task.environments([task.make_env(evaluation=evaluation)])

    def _player(self, environments: Environments, seed: int) -> Player:
        generator = torch.Generator(self._device).manual_seed(seed)
        resamples = self.learner is not None and self.learner.config.execution == "resample"
        return Player(
            partial(self.policy.act, explore=self._samples, generator=generator), environments, resamples
        )

    def _play(self, environments: Environments) -> PlayedEpisodes:
        """Whole episodes from seeds of their own."""
        found, stride, rewards = PlayedEpisodes(), 1, []
        steps = self._player(environments, self.seed).episodes(self.episode_count, self.seed)
        for number, (seen, _, transition) in enumerate(steps):
            if transition.executed[0]:
                rewards.append(float(transition.reward[0]))
                if number % stride == 0:
                    assert transition.safe_set is not None
                    taken = transition.executed_action[0]
                    found.visited.append((trees.index(seen, 0), taken, transition.safe_set[0]))
                    if len(found.visited) > 2 * KEPT_STATES:
                        found.visited, stride = found.visited[::2], 2 * stride
            count(found.tally, transition, environments)
            if environments.finished:
                found.episodes += environments.finished
                found.rewards.append(np.array(rewards))
                rewards = []
        return found

    @property
    def _samples(self) -> bool:
        return describe(self.task.config.run.env).sample_in_evaluation

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if self.learner is None else self.learner.device

    # --- values ------------------------------------------------------------------------------------------

    @cached_property
    def probe_batch(self) -> Batch[Array]:
        """The fixed transitions."""
        return probes.probe_set(self.task)

    def probe(self) -> Values:
        """Values and targets on the probe set."""
        return Values(*values_and_targets(self._critics(), self.probe_batch))

    def values_and_returns(self) -> tuple[Array, Array]:
        """Q [B] of executed actions, and the Monte-Carlo returns [B] under the guard that followed.

        Played as in training: a Learner values clipped rewards and lives where those are its task.
        """
        learner, gamma = self._critics(), self.task.config.data.gamma
        environments = self._environments(self.task, evaluation=False)
        player = self._player(environments, self.seed)
        values, returns = [], []
        for episode in range(self.episode_count):
            environments.reset(np.ones(1, bool), [self.seed + episode])
            q, rewards, ended = [], [], False
            while not ended:
                seen, _, transition = player.step()
                ended = bool(transition.ended[0])
                if transition.executed[0]:
                    q.append(values_at(learner, seen, transition.executed_action).mean())
                    rewards.append(float(transition.reward[0]))
            values += q
            returns += list(monte_carlo(rewards, gamma, terminated=bool(transition.terminated[0])))
        environments.close()
        return np.array(values), np.array(returns)

    def _critics(self) -> QLearner:
        if self.learner is None or self.learner.config.actor == "clone" or not self.task.guard.learns:
            raise Unavailable("this policy has no critics")
        return self.learner

    def evaluation_curve(self) -> Array:
        """Mean return [k] of each evaluation during training."""
        return np.array([row["mean"] for row in self._rows("evaluation")], np.float64)

    def _rows(self, kind: str) -> list[dict[str, Any]]:
        if self.folder is None:
            raise Unavailable("this measures a training run, and only a policy was given")
        with (self.folder / "metrics.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if f'"{kind}"' in line]
        return [row for row in rows if row["kind"] == kind]

    # --- critical states ---------------------------------------------------------------------------------

    @cached_property
    def critical_states(self) -> list[probes.CriticalState]:
        """The same for every guard and every policy."""
        return probes.critical_states(self.task, self.state_count)

    def margins_on_critical_states(self, delta: float) -> Array:
        """Least margin [B] of the policy's own actions, under rules shifted inwards by delta."""
        environments = probes.shifted(self.task, delta)
        (guarded,) = environments.guarded
        margins = []
        for state, proposed in zip(self.critical_states, self._own_actions, strict=True):
            state.restore(environments)
            margins.append(guarded.certify(environments.actions.executed(proposed)).margin)
        environments.close()
        return np.array(margins)

    @cached_property
    def _own_actions(self) -> list[Array]:
        """What the policy proposes in each critical state, without any guard."""
        generator = torch.Generator(self._device).manual_seed(self.seed)
        seen = [trees.stack([state.observation]) for state in self.critical_states]
        return [self.policy.act(s, explore=self._samples, generator=generator)[0] for s in seen]

    def first_events(self, *, guarded: bool) -> Times:
        """Replays from critical states to the first unsafe event, the end of the episode or the horizon.

        Where nothing reports unsafe events, an executed action that the rules forbid is one.
        """
        if guarded not in self._times:
            self._times[guarded] = self._replayed(guarded=guarded)
        return self._times[guarded]

    def _replayed(self, *, guarded: bool) -> Times:
        task = self.task if guarded else probes.unguarded(self.task)
        environments = self._environments(task)
        reported = describe(task.config.run.env).reports_unsafe_events
        watched = reported or any(layer.unsafe_event is not None for layer in environments.guarded)
        steps, events = [], []
        for number, state in enumerate(self.critical_states[: self.replay_count]):
            state.restore(environments)
            player = self._player(environments, self.seed + number)
            event, step = False, 0
            while step < self.horizon and not event:
                transition = player.step().transition
                step += 1
                event = bool(transition.unsafe_event[0] if watched else transition.margin[0] < 0)
                if transition.ended[0]:
                    break
            steps.append(step)
            events.append(event)
        environments.close()
        return Times(np.array(steps), np.array(events))

    # --- what training visited, and what the data supports -----------------------------------------------

    def visited_codes(self) -> Array:
        """SimHash codes of the states that training visited, in order."""
        if self.folder is None:
            raise Unavailable("this measures a training run, and only a policy was given")
        return visits.codes(self.folder, trees.index(self.probe_batch.observation, 0))

    def support(self) -> Support:
        """The policy beside a clone of the offline data, on the states of the evaluation episodes."""
        return self._support

    @cached_property
    def _support(self) -> Support:
        clone, held_out = behaviour.cloned(self.task)
        visited = self.played().visited
        if not visited:
            raise Unavailable("the Guardian stopped every episode before its first step")
        seen = trees.stack([row[0] for row in visited])
        actions, sets = np.stack([row[1] for row in visited]), np.stack([row[2] for row in visited])
        kl = behaviour.divergence(clone, self.learner, self.task, seen, actions, sets)
        return Support(clone.probability(seen, actions, sets), held_out, kl)


def measure_run(
    path: Path,
    names: Iterable[str] = (),
    *,
    policy: Any = None,
    episodes: int = 10,
    states: int = 50,
    horizon: int = 500,
    replays: int | None = None,
) -> dict[str, Found | str]:
    """Measurements of a run as it was last saved; all of ours by default.

    `policy` measures another one in the task of the run: a function of one observation, or with `predict` as in SB3.
    A measurement that cannot be made is a sentence.
    """
    learner, task = trained(path)
    own = policy is None
    subject = PolicySubject(
        task,
        learner if own else ForeignPolicy(policy, task.example.actions),
        learner if own else None,
        path if own else None,
        episodes,
        states,
        horizon,
        replays,
        SEED + 1_000 * task.config.run.seed,  # two seeds of a random policy are two samples
    )
    return measure_subject(subject, names or (*METRICS, *MEASUREMENTS))
