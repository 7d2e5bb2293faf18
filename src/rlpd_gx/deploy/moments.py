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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx import trees
from rlpd_gx.deploy.pictures import png
from rlpd_gx.deploy.safe_set_shapes import Shapes, plain
from rlpd_gx.envs import snapshots
from rlpd_gx.envs.description import describe, learner_view
from rlpd_gx.errors import GxError, StopEpisode
from rlpd_gx.guardian import GuardedEnv
from rlpd_gx.loading import raised
from rlpd_gx.loop.resume import last_saved
from rlpd_gx.loop.task import Task
from rlpd_gx.loop.train import EVALUATION_SEED
from rlpd_gx.replay.stored_steps import stored_steps
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Array, Status, Verdict

STATUSES = (*Status, "stopped")
KEPT = 3  # episodes
ANCHOR_EVERY, ANCHOR_BYTES = 8, 1 << 26  # saved states of an episode, and what they may take together
MOST_STEPS = 60_000  # of one episode
MOST_STEPS_BEFORE = 400_000  # that are taken again to reach an episode whose start depends on those before


@dataclass
class Replay:
    """One episode that was played again: what happened in each step, and states to return to."""

    env: gym.Env
    proposed: list[Array] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    unsafe: list[int] = field(default_factory=list)
    resets: set[int] = field(default_factory=set)
    """Steps before which a lost life ended an episode of the Learner, and the game went on."""
    first_frame: bytes | GxError | None = None
    anchors: dict[int, Json] = field(default_factory=dict)
    every: int = ANCHOR_EVERY
    ending: str = ""
    at: int = -1
    """The step at which `env` is now; -1 where that is not known."""
    note: str = ""

    def __len__(self) -> int:
        return len(self.verdicts)

    @property
    def guarded(self) -> GuardedEnv | None:
        """The layer that asks the rules."""
        return _guarded(self.env)

    def step(self, proposed: Array) -> tuple[Tree, bool]:
        """Take a step and record it; returns the observation and whether the episode is over."""
        if len(self) % self.every == 0:
            self._anchor()
        if len(self) == 0:
            self.first_frame = _picture(self.env)
        observation, reward, terminated, truncated, info = self.env.step(proposed)
        if "guardian_stop" in info:
            self.ending = f"stopped: {info['guardian_stop']}"
            return observation, True
        self.proposed.append(np.asarray(proposed))
        verdict = info.get("guardian") or Verdict(proposed, proposed, Status.ALLOWED, suggestion=proposed)
        self.verdicts.append(verdict)
        self.rewards.append(float(info.get("raw_reward", reward)))
        self.unsafe.append(int(bool(info.get("unsafe_event", False))))
        over = bool(terminated or truncated)
        self.ending = "terminated" if terminated else "truncated" if truncated else ""
        return observation, over

    def _anchor(self) -> None:
        saved = snapshots.snapshot(self.env)
        if saved is None:
            return
        self.anchors[len(self)] = saved
        if len(self.anchors) * _nbytes(saved) > ANCHOR_BYTES:
            self.every *= 2
            self.anchors = {t: a for t, a in self.anchors.items() if t % self.every == 0}

    def go_to(self, step: int, *, drawn: bool) -> tuple[Tree, Json] | None:
        """Bring `env` to the state before a step; what the last step on the way returned, if there was one.

        `drawn`: a step must lead there, since some emulators draw only then.
        """
        latest = step - 1 if drawn and step else step
        start = max((t for t in self.anchors if t <= latest), default=None)
        last = None
        if not 0 <= self.at <= latest or (start is not None and start > self.at):
            if start is None:
                raise GxError("the states of this environment cannot be saved, so there is no picture of it")
            snapshots.restore(self.env, self.anchors[start])
            self.at = start
        guarded = self.guarded
        inner = self.env if guarded is None else guarded.env
        while self.at < step:
            if self.at in self.resets:
                self.env.reset()
            observation, _, _, _, info = inner.step(self.verdicts[self.at].action)
            last = (observation, info)
            self.at += 1
        if step in self.resets:
            last = self.env.reset()
            self.at = -1
        return last

    def frame(self, step: int) -> bytes:
        """The picture of the state before a step; after the last one, of how it ended."""
        if step == 0:
            picture = self.first_frame
        else:
            self.go_to(step, drawn=True)
            picture = _picture(self.env)
        if isinstance(picture, bytes):
            return picture
        raise picture or GxError("there is no picture of an episode without a step")

    def attempt(self, step: int, action: Any) -> Json:
        """The verdict on another action in the state before a step."""
        guarded = self.guarded
        if guarded is None:
            raise GxError("this run has no rules to ask")
        last = self.go_to(step, drawn=False)
        if last is not None:  # the environment moved below the guard: tell the guard where it is
            observation, info = last
            before = [t for t in self.resets if t <= step]
            guarded.restore(
                {
                    "previous": np.asarray(self.verdicts[step - 1].action),
                    "time": step - max(before, default=0),
                    "running": True,
                    "corrected": False,
                    "unsafe_events": 0,
                    "observation": observation if isinstance(observation, dict) else {"": observation},
                    "info": info,
                }
            )
        space = guarded.action_space
        proposed = (
            np.int64(action) if isinstance(space, gym.spaces.Discrete) else np.array(action, space.dtype)
        )
        if not space.contains(proposed):
            raise GxError(f"{action!r} is no action of {space}")
        try:
            verdict = guarded.certify(proposed)
        except StopEpisode as stop:
            return {"status": "stopped", "reason": str(stop), "margins": {}, "binding": []}
        shapes = Shapes(space, [verdict])
        return _words(verdict) | shapes.as_json() | shapes.polygon(0)

    def as_json(self) -> Json:
        """All steps as columns."""
        guarded, verdicts = self.guarded, self.verdicts
        rules = [] if guarded is None else list(guarded.guardian.names)
        names = [*rules, *sorted({n for v in verdicts for n in v.binding if n not in rules})]
        columns: Json = {
            "proposed": plain(np.stack(self.proposed)),
            "executed": plain(np.stack([np.asarray(v.action) for v in verdicts])),
            "status": [STATUSES.index("stopped" if v.stopped else v.status) for v in verdicts],
            "distance": plain(np.array([v.distance for v in verdicts], float)),
            "executed_margin": plain(np.array([v.executed_margin for v in verdicts], float)),
            "margins": {n: plain(np.array([v.margins.get(n, np.nan) for v in verdicts])) for n in rules},
            "binding": [[names.index(n) for n in v.binding] for v in verdicts],
            "reward": plain(np.array(self.rewards)),
            "unsafe": self.unsafe,
            "not_exact": [t for t, v in enumerate(verdicts) if v.corrected and not v.exact],
            "reasons": {str(t): v.reason for t, v in enumerate(verdicts) if v.reason},
        }
        monitor = any(not v.enforced for v in verdicts)
        if monitor:
            columns["suggestion"] = [
                None if v.suggestion is None else plain(np.asarray(v.suggestion)) for v in verdicts
            ]
        return {
            "length": len(self),
            "space": _space(self.env),
            "rules": names,
            "ungraded": sorted(set().union(*(v.ungraded for v in verdicts))),
            "near_miss": 0.0 if guarded is None else guarded.audit.near_miss,
            "enforced": not monitor,
            "watched": (guarded is not None and guarded.unsafe_event is not None) or any(self.unsafe),
            "resets": sorted(self.resets),
            "ending": self.ending,
            "note": self.note,
            "drawn": isinstance(self.first_frame, bytes),
            "undrawn": "" if isinstance(self.first_frame, bytes) else str(self.first_frame),
            "steps": columns,
            **Shapes(self.env.action_space, verdicts).as_json(),
        }


class Moments:
    """The episodes of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.task, loaded = last_saved(folder)
        self.state, self.saved_at = loaded.state, loaded.step
        self.known: OrderedDict[str, Replay] = OrderedDict()

    def replay(self, key: Json) -> Replay:
        """An episode by its key, from the few that are kept or played again."""
        name = json.dumps(key, sort_keys=True)
        if name not in self.known:
            made = self.evaluation(key["index"]) if key["kind"] == "evaluation" else self.training(**key)
            if not len(made):
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
        every, before = config.run.evaluate_every, self.saved_at - config.run.num_envs
        due = every > 0 and self.saved_at // every > before // every
        same = last is not None and (due or self.saved_at >= config.run.steps)
        learner = self.task.learner()
        learner.load_state(self.state["learner"])
        seed = EVALUATION_SEED + 1_000 * config.run.seed
        generator = torch.Generator(learner.device).manual_seed(seed)
        sample = describe(config.run.env).sample_in_evaluation
        env = drawable(self.task, evaluation=True)
        # sampled actions share one generator: the episodes before come first
        for episode in range(0 if sample else index, index + 1):
            played = Replay(env)
            observation, _ = env.reset(seed=seed + episode)
            over = False
            while not over and len(played) < MOST_STEPS:
                sets = None
                if learner.config.execution == "resample" and played.guarded is not None:
                    sets = self.task.encode(played.guarded.safe_set())[None]
                batch = trees.stack([learner_view(observation)])
                proposed = learner.act(batch, sets, explore=sample, generator=generator)[0]
                observation, over = played.step(proposed)
        played.at = len(played)
        score = sum(played.rewards)
        then = last["episodes"][index]["score"] if last and index < len(last["episodes"]) else None
        if same and then is not None:
            agrees = abs(score - then) <= 1e-6 * max(abs(then), 1.0)
            played.note = (
                f"Replayed by the policy saved at step {self.saved_at:,}; the return equals the recorded one."
                if agrees
                else f"Replayed by the policy saved at step {self.saved_at:,}, but the recorded return was {then:.6g}: "
                "this environment does not repeat itself."
            )
        else:
            played.note = (
                f"Played now by the policy saved at step {self.saved_at:,}; no evaluation was recorded then."
            )
        return played

    def training(self, env: int, first: int, length: int, kind: str = "training") -> Replay:
        """Steps [first, first + length) of a training environment."""
        if not 0 < length <= MOST_STEPS or not 0 <= env < self.task.config.run.num_envs:
            raise GxError(f"an episode of {length} steps in environment {env} is not replayed")
        names, ring = self.state["segments"], self.state["ring"]
        rows = stored_steps(self.folder.segments, names, ring, self.task.layout, env)
        steps = np.flatnonzero(rows["is_step"])
        if first + length > len(steps):
            raise GxError(f"this episode is newer than the last checkpoint (step {self.saved_at:,})")
        world = drawable(self.task, evaluation=False)
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
            observation, _ = played.step(_action(rows["proposed_action"][place], world.action_space))
            if not len(played) or not np.array_equal(
                played.verdicts[-1].action, rows["executed_action"][place]
            ):
                raise self._differs(len(played))
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
        guarded = _guarded(world)
        inner = world if guarded is None else guarded.env
        if target > MOST_STEPS_BEFORE:
            raise GxError(
                f"{target:,} steps lead to this episode, and at most {MOST_STEPS_BEFORE:,} are taken again"
            )
        observation, _ = world.reset(seed=seed)
        for place in range(target):
            if rows["is_step"][place]:
                inner.step(_action(rows["executed_action"][place], world.action_space))
            if rows["episode_step"][place + 1] == 0:
                observation, _ = world.reset()
        return observation

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

    def _differs(self, step: int) -> GxError:
        return GxError(
            f"replaying this episode differs from what was stored (step {step}): the environment does not repeat itself"
        )

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
            return Shapes(replay.env.action_space, replay.verdicts[step : step + 1]).polygon(0), b""
        return replay.attempt(step, request["action"]), b""


def drawable(task: Task, *, evaluation: bool) -> gym.Env:
    """The environment of a task behind its guard, able to render where it can."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # lets MuJoCo render without a screen
    run = task.config.run
    drawing = replace(run, env_kwargs=run.env_kwargs | {"render_mode": "rgb_array"})
    try:
        return Task(replace(task.config, run=drawing)).make_env(evaluation=evaluation)
    except GxError:  # an environment that cannot be drawn can still be replayed
        return task.make_env(evaluation=evaluation)


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


def _guarded(env: gym.Env) -> GuardedEnv | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, GuardedEnv):
            return env
        env = env.env
    return None


def _action(stored: Array, space: gym.Space) -> Any:
    return np.int64(stored) if isinstance(space, gym.spaces.Discrete) else stored.astype(space.dtype)


def _picture(env: gym.Env) -> bytes | GxError:
    try:
        frame: Any = env.render()
    except Exception as error:  # each rendering package raises its own errors
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return GxError(
            f"it cannot be drawn here: {first_line} (for MuJoCo, MUJOCO_GL=egl or osmesa chooses how)"
        )
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        return GxError("this environment renders no pictures")
    return png(np.asarray(frame, np.uint8))


def _words(verdict: Verdict) -> Json:
    """A verdict for the page."""
    return {
        "status": "stopped" if verdict.stopped else str(verdict.status),
        "proposed": plain(np.asarray(verdict.proposed)),
        "executed": plain(np.asarray(verdict.action)),
        "suggestion": None if verdict.suggestion is None else plain(np.asarray(verdict.suggestion)),
        "distance": plain(np.asarray(verdict.distance, float)),
        "margins": {name: plain(np.asarray(m, float)) for name, m in verdict.margins.items()},
        "binding": list(verdict.binding),
        "exact": verdict.exact,
        "reason": verdict.reason,
    }


def _space(env: gym.Env) -> Json:
    """What the actions are called, and how far they reach."""
    space, unwrapped = env.action_space, env.unwrapped
    if isinstance(space, gym.spaces.Discrete):
        meanings = getattr(unwrapped, "action_meanings", ())
        names = [str(m) for m in meanings] if isinstance(meanings, tuple | list) else []
        start = int(space.start)
        return {
            "kind": "discrete",
            "start": start,
            "names": names if len(names) == space.n else [str(start + i) for i in range(int(space.n))],
            "joystick": len(names) == space.n and any("LEFT" in n or "UP" in n for n in names),
        }
    assert isinstance(space, gym.spaces.Box)
    count = int(np.prod(space.shape))
    return {
        "kind": "box",
        "low": plain(np.ravel(space.low)),
        "high": plain(np.ravel(space.high)),
        "names": _actuators(unwrapped, count),
    }


def _actuators(unwrapped: Any, count: int) -> list[str]:
    model = getattr(unwrapped, "model", None)
    try:
        joints = [model.joint(int(model.actuator_trnid[i, 0])).name for i in range(count)]  # type: ignore[union-attr]
    except Exception:  # not MuJoCo, or actuators that move no joint
        joints = []
    return [name.removesuffix("_joint") or f"action {i}" for i, name in enumerate(joints)] or [
        f"action {i}" for i in range(count)
    ]


def _nbytes(saved: Json) -> int:
    return sum(_sizes(saved))


def _sizes(tree: Tree) -> Iterator[int]:
    for leaf in trees.leaves(tree):
        yield leaf.nbytes if isinstance(leaf, np.ndarray) else 32


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
