"""One episode that is played again: what happened in each step, and the way back to the state before any of them."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx import trees
from rlpd_gx.deploy.pictures import png
from rlpd_gx.deploy.safe_set_shapes import Shapes, plain
from rlpd_gx.envs import snapshots
from rlpd_gx.envs.actions import ActionView
from rlpd_gx.errors import GxError, StopEpisode, first_line
from rlpd_gx.guardian import GuardedEnv, guarded_layer
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Action, Status, Verdict

STATUSES = (*Status, "stopped")
ANCHOR_EVERY, ANCHOR_BYTES = 8, 1 << 26  # saved states of an episode, and what they may take together


@dataclass
class Replay:
    """One episode that was played again: what happened in each step, and states to return to."""

    env: gym.Env
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
    unguarded: tuple[Tree, Json] | None = None
    """Observation and info of the last step, where it was taken below the guard: the guard does not know them yet."""
    watched: bool = False
    """Whether unsafe events were looked for."""
    note: str = ""

    def __len__(self) -> int:
        return len(self.verdicts)

    @property
    def actions(self) -> ActionView:
        """Actions as the page shows them: joint actions are numbered."""
        return ActionView(self.env.action_space)

    @property
    def guarded(self) -> GuardedEnv | None:
        """The layer that asks the rules."""
        return guarded_layer(self.env)

    def step(self, proposed: Action) -> tuple[Tree, bool]:
        """Propose an action of the environment and record what follows; returns the observation, and if it is over."""
        if len(self) % self.every == 0:
            self._anchor()
        if len(self) == 0:
            self.first_frame = picture(self.env)
        observation, reward, terminated, truncated, info = self.env.step(proposed)
        if "guardian_stop" in info:
            self.ending = f"stopped: {info['guardian_stop']}"
            return observation, True
        verdict = info.get("guardian") or Verdict(proposed, proposed, Status.ALLOWED, suggestion=proposed)
        self.verdicts.append(verdict)
        self.rewards.append(float(info.get("raw_reward", reward)))
        self.unsafe.append(int(bool(info.get("unsafe_event", False))))
        self.watched |= "unsafe_event" in info
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

    def go_to(self, step: int, *, drawn: bool) -> None:
        """Bring `env` to the state before a step; `drawn`: by a step, since some emulators draw only then."""
        latest = step - 1 if drawn and step else step
        start = max((t for t in self.anchors if t <= latest), default=None)
        if not 0 <= self.at <= latest or (start is not None and start > self.at):
            if start is None:
                raise GxError("the states of this environment cannot be saved, so there is no picture of it")
            snapshots.restore(self.env, self.anchors[start])
            self.at, self.unguarded = start, None
        guarded = self.guarded
        inner = self.env if guarded is None else guarded.env
        while self.at < step:
            observation, _, _, _, info = inner.step(self.verdicts[self.at].action)
            self.at, self.unguarded = self.at + 1, (observation, info)
            if self.at in self.resets:
                self.env.reset()
                self.unguarded = None

    def frame(self, step: int) -> bytes:
        """The picture of the state before a step; after the last one, of how it ended."""
        if step:
            self.go_to(step, drawn=True)
        found = picture(self.env) if step else self.first_frame
        if isinstance(found, bytes):
            return found
        raise found or GxError("there is no picture of an episode without a step")

    def attempt(self, step: int, action: Any) -> Json:
        """The verdict on another action in the state before a step."""
        guarded = self.guarded
        if guarded is None:
            raise GxError("this run has no rules to ask")
        self.go_to(step, drawn=False)
        if self.unguarded is not None:
            observation, info = self.unguarded
            began = max((t for t in self.resets if t <= step), default=0)
            seen = trees.map_leaves(np.asarray, observation)
            guarded.place(seen, info, np.asarray(self.verdicts[step - 1].action), step - began)
        space = self.actions.learner_space
        choice: Any = (
            np.int64(action) if self.actions.discrete else np.array(action, space.dtype).reshape(space.shape)
        )
        if not space.contains(choice):
            raise GxError(f"{action!r} is no action of {space}")
        try:
            verdict = guarded.certify(self.actions.executed(choice))
        except StopEpisode as stop:
            return {"status": "stopped", "reason": str(stop), "margins": {}, "binding": []}
        shapes = Shapes(space, [verdict])
        return self._words(verdict) | shapes.as_json() | shapes.polygon(0)

    def as_json(self) -> Json:
        """All steps as columns."""
        guarded, verdicts = self.guarded, self.verdicts
        rules = [] if guarded is None else list(guarded.guardian.names)
        names = [*rules, *sorted({n for v in verdicts for n in v.binding if n not in rules})]
        columns: Json = {
            "proposed": self._shown([v.proposed for v in verdicts]),
            "executed": self._shown([v.action for v in verdicts]),
            "status": [STATUSES.index("stopped" if v.stopped else v.status) for v in verdicts],
            "distance": plain(np.array([v.distance for v in verdicts], float)),
            "margins": {n: plain(np.array([v.margins.get(n, np.nan) for v in verdicts])) for n in rules},
            "binding": [[names.index(n) for n in v.binding] for v in verdicts],
            "reward": plain(np.array(self.rewards)),
            "unsafe": self.unsafe,
            "not_exact": [t for t, v in enumerate(verdicts) if v.corrected and not v.exact],
            "reasons": {str(t): v.reason for t, v in enumerate(verdicts) if v.reason},
        }
        return {
            "length": len(self),
            "space": _space(self.env, self.actions),
            "rules": names,
            "ungraded": sorted(set().union(*(v.ungraded for v in verdicts))),
            "near_miss": 0.0 if guarded is None else guarded.audit.near_miss,
            "enforced": all(v.enforced for v in verdicts),
            "watched": self.watched,
            "resets": sorted(self.resets),
            "ending": self.ending,
            "note": self.note,
            "drawn": isinstance(self.first_frame, bytes),
            "undrawn": "" if isinstance(self.first_frame, bytes) else str(self.first_frame),
            "steps": columns,
            **Shapes(self.actions.learner_space, verdicts).as_json(),
        }

    def _words(self, verdict: Verdict) -> Json:
        """A verdict for the page."""
        return {
            "status": "stopped" if verdict.stopped else str(verdict.status),
            "proposed": self._shown([verdict.proposed])[0],
            "executed": self._shown([verdict.action])[0],
            "distance": plain(np.asarray(verdict.distance, float)),
            "margins": {name: plain(np.asarray(m, float)) for name, m in verdict.margins.items()},
            "binding": list(verdict.binding),
            "exact": verdict.exact,
            "reason": verdict.reason,
        }

    def _shown(self, actions: list[Action]) -> list[Any]:
        return [plain(np.asarray(self.actions.chosen(action))) for action in actions]


def picture(env: gym.Env) -> bytes | GxError:
    """What an environment renders, as PNG; or why there is none."""
    try:
        frame: Any = env.render()
    except Exception as error:  # each rendering package raises its own errors
        return GxError(
            f"it cannot be drawn here: {first_line(error)} (for MuJoCo, MUJOCO_GL=egl or osmesa chooses how)"
        )
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        return GxError("this environment renders no pictures")
    return png(np.asarray(frame, np.uint8))


def _space(env: gym.Env, actions: ActionView) -> Json:
    """What the actions are called, and how far they reach."""
    space, unwrapped = actions.learner_space, env.unwrapped
    if isinstance(space, gym.spaces.Discrete):
        meanings = getattr(unwrapped, "action_meanings", ())
        names = [str(m) for m in meanings] if isinstance(meanings, tuple | list) else []
        start, count = int(space.start), int(space.n)
        named = len(names) == count
        if not named:
            names = [str(np.asarray(actions.executed(np.array(start + i))).tolist()) for i in range(count)]
        joystick = named and any("LEFT" in n or "UP" in n for n in names)
        return {"kind": "discrete", "start": start, "names": names, "joystick": joystick}
    count = int(np.prod(space.shape))
    if isinstance(space, gym.spaces.Box):
        low, high = space.low, space.high
    else:
        low, high = np.zeros_like(space.nvec), space.nvec - 1
    return {
        "kind": "box",
        "low": plain(np.ravel(low)),
        "high": plain(np.ravel(high)),
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
    return sum(leaf.nbytes if isinstance(leaf, np.ndarray) else 32 for leaf in trees.leaves(saved))
