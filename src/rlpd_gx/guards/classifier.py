"""Classifier: a network learns from observed unsafe events which actions lead to one, and vetoes those.

Rules correct nothing; forbidden proposals and actions are counted. Each veto is a correction in tally and audit.

The label of a step is an unsafe event within the next 16 steps of its episode; where the task reports none, an executed
action that the rules forbid, in the same step. A fifth of the online rows is held out. On these the threshold is set:
at most one half, and low enough that at most 10% of the labelled steps (`--guard classifier=0.1`) lie below it.
Precision, recall and calibration are reported there. Nothing is vetoed before 20 held-out steps are labelled.

A veto executes the nearest action below the threshold, or the least risky one if none is: among all discrete actions,
or 64 fixed ones in a box. The network is no part of an exported policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rlpd_gx import trees
from rlpd_gx.envs.actions import ActionView
from rlpd_gx.envs.description import learner_view
from rlpd_gx.guards import none
from rlpd_gx.guards._choosing import ChoosingGuardian, choosing_env
from rlpd_gx.guards._risk import Risk, labels
from rlpd_gx.guards.base import Guard
from rlpd_gx.learner import QLearner
from rlpd_gx.metrics.classification import classification, threshold_for
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.types import Action, Array, ContextLike, State, Verdict

WINDOW = 16  # steps in which an event labels a step
BATCH = 256
CHECK_EVERY = 50  # blocks of updates between new thresholds
CHECKED = 4_096  # rows that are drawn for one
LEAST_EVENTS = 20
# what is more likely than not to end badly is vetoed, however sure the classifier is of others
LARGEST_THRESHOLD = 0.5
BLOCK, HELD_OUT = 64, 5  # one in five blocks of 64 rows is held out: neighbours are alike


@dataclass
class Run:
    """What changes during a run."""

    seed: int
    watched: bool
    generator: Any  # of the rows to learn from
    risk: Risk | None = None
    threshold: float = float("inf")
    blocks: int = 0
    quality: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Classifier(Guard):
    """Vetoes actions whose predicted risk of an unsafe event is at or above the threshold."""

    run: Run = field(default_factory=lambda: Run(0, True, None))

    @property
    def corrects(self) -> bool:
        return True

    def begin(self, seed: int, *, watched: bool) -> Self:
        return replace(self, run=Run(seed, watched, np.random.default_rng([seed, 1])))

    def environment(self, env: gym.Env, rules: Any, **options: Any) -> gym.Env:
        declared = options.pop("state", None)
        here: Any = None

        def state(env: gym.Env, observation: Any, info: Any) -> State:
            nonlocal here
            here = learner_view(observation)
            return observation if declared is None else declared(env, observation, info)

        def choose(
            guardian: ChoosingGuardian, verdict: Verdict, state: State, context: ContextLike
        ) -> Action | None:
            return self._veto(guardian, verdict, here)

        return choosing_env(env, rules, choose, mode=self.mode, state=state, **options)

    def learner(self, learner: QLearner, action_space: gym.Space) -> QLearner:
        self.run.risk = Risk(learner, action_space, self.run.seed + 2)
        return learner

    def _veto(self, guardian: ChoosingGuardian, verdict: Verdict, observation: Any) -> Action | None:
        run = self.run
        if run.risk is None or not np.isfinite(run.threshold):
            return None
        view = ActionView(guardian.action_space)
        actions = run.risk.nearby(view.chosen(verdict.proposed))
        seen = trees.stack([observation] * len(actions))
        risk = run.risk.of(seen, actions)
        if risk[0] < run.threshold:
            return None
        distance = np.array(
            [guardian.distance(verdict.proposed, view.executed(action)) for action in actions]
        )
        calm = risk < run.threshold
        best = np.where(calm, distance, np.inf).argmin() if calm.any() else risk.argmin()
        if np.array_equal(actions[best], actions[0]):  # nothing is less risky than the proposal
            return None
        return view.executed(actions[best])

    def learn(self, data: Hybrid) -> dict[str, float]:
        run = self.run
        assert run.risk is not None
        assert data.online is not None
        loss = float("nan")
        if data.online.extent.available(data.stack, enough=BATCH):
            seen, actions, event, held_out = self._labelled(data, BATCH)
            if (~held_out).any():
                kept = ~held_out
                loss = run.risk.fit(trees.index(seen, kept), actions[kept], event[kept])
            if run.blocks % CHECK_EVERY == 0:
                self._check(data)
        run.blocks += 1
        unknown = {"precision": np.nan, "recall": np.nan, "brier": np.nan, "calibration_error": np.nan}
        found = unknown | run.quality | {"loss": loss}
        return {f"classifier_{name}": value for name, value in found.items()}

    def _check(self, data: Hybrid) -> None:
        """Set the threshold and measure the classifier on held-out rows."""
        assert self.run.risk is not None
        assert self.value is not None
        seen, actions, event, held_out = self._labelled(data, CHECKED)
        event = event[held_out]
        if event.sum() < LEAST_EVENTS:
            return
        risk = self.run.risk.of(trees.index(seen, held_out), actions[held_out])
        missed = min(self.value, 0.999)
        self.run.threshold = min(threshold_for(risk, np.asarray(event), missed), LARGEST_THRESHOLD)
        self.run.quality = classification(risk, event, self.run.threshold) | {"threshold": self.run.threshold}

    def _labelled(self, data: Hybrid, count: int) -> tuple[Any, Array, Array, Array]:
        """Observations, executed actions, labels, and which rows are held out, of rows whose label is known."""
        assert data.online is not None
        extent = data.online.extent
        rows = np.unique(extent.draw(count, data.stack, self.run.generator))
        window = WINDOW if self.run.watched else 1
        event, known = labels(extent, rows, window, watched=self.run.watched)
        rows, event = rows[known], event[known]
        held_out = rows // BLOCK % HELD_OUT == HELD_OUT - 1
        return extent.observation(rows, data.stack), extent.timeline.executed_action[rows], event, held_out

    def state(self) -> dict[str, Any]:
        run = self.run
        assert run.risk is not None
        return {
            "risk": run.risk.state(),
            "generator": run.generator.bit_generator.state,
            "threshold": None if run.threshold == float("inf") else run.threshold,
            "blocks": run.blocks,
            "quality": dict(run.quality),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        run = self.run
        assert run.risk is not None
        run.risk.load_state(state["risk"])
        run.generator.bit_generator.state = state["generator"]
        run.threshold = float("inf") if state["threshold"] is None else state["threshold"]
        run.blocks, run.quality = state["blocks"], dict(state["quality"])


GUARD = Classifier("classifier", mode="monitor", settings=none.GUARD.settings, value=0.1)
