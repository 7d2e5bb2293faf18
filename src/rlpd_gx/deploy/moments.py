"""Episodes of a run, replayed step by step: `python -m rlpd_gx.deploy.moments RUN` answers the inspector.

Nothing is filmed while a run trains. An evaluation episode is played again from its seed by the saved policy; a
training episode is driven by the proposals in the replay buffer, and must lead through the stored observations.
"""

import json
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx import trees
from rlpd_gx.deploy.replaying import Replay
from rlpd_gx.deploy.safe_set_shapes import Shapes
from rlpd_gx.envs.description import describe, learner_view
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import GuardedEnv, guarded_layer
from rlpd_gx.learner import QLearner
from rlpd_gx.loading import raised
from rlpd_gx.loop.resume import last_saved, restored_learner
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import EVALUATION_SEED
from rlpd_gx.replay.stored_steps import stored_steps
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Action, Array

KEPT = 3  # episodes
MOST_STEPS = 60_000  # of one episode
MOST_STEPS_BEFORE = 400_000  # that are taken again to reach an episode whose start depends on those before


class Moments:
    """The episodes of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.task, loaded = last_saved(folder)
        self.state, self.saved_at = loaded.state, loaded.step
        self.known: OrderedDict[str, Replay] = OrderedDict()

    @cached_property
    def learner(self) -> QLearner:
        """The saved learner; the guard has what it had learned by then."""
        return restored_learner(self.task, self.state)

    def replay(self, key: Json) -> Replay:
        """An episode by its key, from the few that are kept or played again."""
        name = json.dumps(key, sort_keys=True)
        if name not in self.known:
            made = self.evaluation(key["index"]) if key["kind"] == "evaluation" else self.training(**key)
            if not len(made):
                made.env.close()
                raise GxError(f"this episode has no step ({made.ending or 'nothing was recorded'})")
            self.known[name] = made
            while len(self.known) > KEPT:
                self.known.popitem(last=False)[1].env.close()
        self.known.move_to_end(name)
        return self.known[name]

    def evaluation(self, index: int) -> Replay:
        """An episode of the evaluation that belongs to the saved policy."""
        config = self.task.config
        last = self.state["last_evaluation"]
        count = len(last["episodes"]) if last else config.run.evaluation_episodes
        if not 0 <= index < count:
            raise GxError(f"there are the evaluation episodes 0 to {count - 1}")
        every, before = config.run.evaluate_every, self.saved_at - config.run.num_envs
        due = every > 0 and self.saved_at // every > before // every
        same = last is not None and (due or self.saved_at >= config.run.steps)
        learner = self.learner
        seed = EVALUATION_SEED + 1_000 * config.run.seed
        generator = torch.Generator(learner.device).manual_seed(seed)
        sample = describe(config.run.env).sample_in_evaluation
        env = self._world(evaluation=True)
        with _closed_on_error(env):
            # drawn actions share one generator: the episodes before come first
            drawn = sample or not self.task.guard.learns
            for episode in range(0 if drawn else index, index + 1):
                played = Replay(env)
                observation, _ = env.reset(seed=seed + episode)
                over = False
                while not over and len(played) < MOST_STEPS:
                    sets = None
                    if learner.config.execution == "resample" and played.guarded is not None:
                        sets = self.task.encode(self._safe_set(played.guarded))[None]
                    batch = trees.stack([learner_view(observation)])
                    proposed = learner.act(batch, sets, explore=sample, generator=generator)[0]
                    observation, over = played.step(played.actions.executed(proposed))
        played.at = len(played)
        score = sum(played.rewards)
        if same:
            then = last["episodes"][index]["score"]
            agrees = abs(score - then) <= 1e-6 * max(abs(then), 1.0)
            played.note = (
                f"Replayed by the policy saved at step {self.saved_at:,}; the return equals the recorded one."
                if agrees
                else f"Replayed by the policy saved at step {self.saved_at:,}, but the recorded return was {then:.6g}: "
                f"{self._blamed_guard or 'this run does not repeat itself'}."
            )
        else:
            played.note = (
                f"Played now by the policy saved at step {self.saved_at:,}; no evaluation was recorded then."
            )
        return played

    def training(self, env: int, first: int, length: int, kind: str = "training") -> Replay:
        """Steps [first, first + length) of a training environment."""
        if not 0 < length <= MOST_STEPS or first < 0 or not 0 <= env < self.task.config.run.num_envs:
            raise GxError(f"an episode of {length} steps in environment {env} is not replayed")
        names, ring = self.state["segments"], self.state["ring"]
        rows = stored_steps(self.folder.segments, names, ring, self.task.layout, env)
        steps = np.flatnonzero(rows["is_step"])
        if first + length > len(steps):
            raise GxError(f"this episode is newer than the last checkpoint (step {self.saved_at:,})")
        world = self._world(evaluation=False)
        with _closed_on_error(world):
            starts = np.flatnonzero(rows["episode_step"] == 0)
            target = int(steps[first])
            observation = self._reach(world, rows, starts, target, self.task.config.run.seed + env)
            played = Replay(world)
            for place in steps[first : first + length].tolist():
                if len(played) and rows["episode_step"][place] == 0:
                    played.resets.add(len(played))
                    observation, _ = world.reset()
                if not self._matches(observation, rows, place):
                    raise self._differs(len(played))
                observation, _ = played.step(self._action(rows["proposed_action"][place]))
                done = played.actions.chosen(played.verdicts[-1].action) if len(played) else None
                if done is None or not np.array_equal(done, rows["executed_action"][place]):
                    raise self._differs(len(played), self._blamed_guard)
        played.at = len(played)
        played.note = (
            "Replayed from the stored proposals; every observation and executed action equals the stored one."
        )
        return played

    def _reach(self, world: gym.Env, rows: Array, starts: Array, target: int, seed: int) -> Tree:
        """Begin the episode whose first row is `target`, as it began in training."""
        count = int(np.searchsorted(starts, target, side="right"))
        if count == 0 or starts[count - 1] != target:
            raise GxError("no stored episode begins there")
        observation, _ = world.reset(seed=seed)
        for _ in range(count - 1):  # enough where only resets draw random numbers
            observation, _ = world.reset()
        if "observation" in (rows.dtype.names or ()) and self._matches(observation, rows, target):
            return observation
        guarded = guarded_layer(world)
        inner = world if guarded is None else guarded.env
        if target > MOST_STEPS_BEFORE:
            raise GxError(
                f"{target:,} steps lead to this episode, and at most {MOST_STEPS_BEFORE:,} are taken again"
            )
        observation, _ = world.reset(seed=seed)
        for place in range(target):
            if rows["is_step"][place]:
                inner.step(self._action(rows["executed_action"][place]))
            if rows["episode_step"][place + 1] == 0:
                observation, _ = world.reset()
        return observation

    def _action(self, stored: Array) -> Action:
        """A stored action as the environment takes it."""
        view = self.task.example.actions
        choice: Any = np.int64(stored) if view.discrete else stored.astype(view.space.dtype)
        return view.executed(choice)

    def _matches(self, observation: Tree, rows: Array, place: int) -> bool:
        """Whether an observation is the stored one, as far as it is stored with the record."""
        stack = self.task.example.stack
        for name, part in trees.named_leaves({"observation": learner_view(observation)}).items():
            if name in (rows.dtype.names or ()):
                newest = np.asarray(part if stack == 1 else part[-1])
                stored = rows[name][place]
                if not np.array_equal(
                    newest.astype(stored.dtype), stored, equal_nan=stored.dtype.kind == "f"
                ):
                    return False
        return True

    def _differs(self, step: int, why: str = "") -> GxError:
        why = why or "the environment does not repeat itself"
        return GxError(f"replaying this episode differs from what was stored (step {step}): {why}")

    @property
    def _blamed_guard(self) -> str:
        """Why a replay may execute other actions; nothing where rules alone decide."""
        if self.task.guard.exportable or self.task.example.guardian is None:
            return ""
        return f"the corrections of --guard {self.task.config.run.guard} follow from more than the state and its rules"

    def _world(self, *, evaluation: bool) -> gym.Env:
        if not self.task.guard.exportable:  # its environments ask what it has learned
            _ = self.learner
        return drawable(self.task, evaluation=evaluation)

    def _safe_set(self, guarded: GuardedEnv) -> SafeSet | None:
        try:
            return guarded.safe_set(self.task.example.described)
        except GxError:  # the verdict will fall back and say why
            return None

    def answer(self, request: Json) -> tuple[Json, bytes]:
        """What the inspector asks for."""
        replay = self.replay(request["episode"])
        do, step = request["do"], int(request.get("step", 0))
        if do == "episode":
            return replay.as_json() | {"saved_at": self.saved_at}, b""
        if not 0 <= step <= len(replay) - (do != "frame"):
            raise GxError(f"this episode has the steps 0 to {len(replay) - 1}")
        if do == "frame":
            return {}, replay.frame(step)
        if do == "polygon":
            return Shapes(replay.actions.learner_space, replay.verdicts[step : step + 1]).polygon(0), b""
        return replay.attempt(step, request["action"]), b""


def drawable(task: Task, *, evaluation: bool) -> gym.Env:
    """The environment of a task behind its guard, able to render where it can."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # lets MuJoCo render without a screen
    try:
        return task.with_env_kwargs(render_mode="rgb_array").make_env(evaluation=evaluation)
    except GxError:  # an environment that cannot be drawn can still be replayed
        return task.make_env(evaluation=evaluation)


@contextmanager
def _closed_on_error(env: gym.Env) -> Iterator[None]:
    """A replay that succeeds keeps its environment."""
    try:
        yield
    except BaseException:
        env.close()
        raise


def serve(folder: Path) -> None:
    """Answer one JSON line after the other: a JSON line, and the bytes it announces."""
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what environments print must not end up among the answers
    warnings.simplefilter("ignore")
    moments: Moments | None = None
    for line in sys.stdin:
        content = b""
        try:
            moments = moments or Moments(folder)
            answer, content = moments.answer(json.loads(line))
        except GxError as error:
            answer = {"error": " ".join(str(error).split())}
        except Exception as error:  # rules and environments are other people's code
            answer = {"error": f"replaying this episode {raised(error)}"}
        private.write(json.dumps(answer | {"bytes": len(content)}).encode() + b"\n" + content)
        private.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
