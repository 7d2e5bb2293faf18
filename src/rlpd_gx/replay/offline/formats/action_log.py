"""Action logs of a deterministic emulator: gzipped JSON of seeds and actions, replayed in the ALE.

`{"env_id", "kwargs", "episodes": [{"seed", "ale_actions", "rewards", "lives", "terminated", "truncated"}]}`;
`ale_actions` are ALE ids, `lives` has one entry more than there are steps. A replay restores the observations,
and must reproduce every reward and life.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.frames import grey84
from rlpd_gx.loading import load
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source, encode_sets, first_bytes, problem
from rlpd_gx.safe_sets import SafeSet, Spec
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Array
from rlpd_gx.untrusted import AGAIN, gunzip, reading

name = "action_log"
description = "gzipped JSON log of Atari actions"
Check = Callable[[Tree], bool]
FIELDS: dict[str, tuple[str, Check]] = {
    "seed": ("a whole number from 0 to 2**63 - 1", lambda value: _is_whole(value) and 0 <= value < 2**63),
    "ale_actions": ("a list of whole numbers", lambda value: _is_list(value, _is_whole)),
    "rewards": ("a list of numbers", lambda value: _is_list(value, _is_number)),
    "lives": ("a list of whole numbers", lambda value: _is_list(value, _is_whole)),
    "terminated": ("true or false", lambda value: isinstance(value, bool)),
    "truncated": ("true or false", lambda value: isinstance(value, bool)),
}
# What affects a replay. Anything else in a log, such as a render mode, is refused.
KWARGS = (
    "frameskip",
    "repeat_action_probability",
    "full_action_space",
    "mode",
    "difficulty",
    "max_num_frames_per_episode",
)
LONGEST_FRAMESKIP = 64  # a damaged one would run almost without end
ENCODED = ("objects", "cells")  # numbers made of RAM
OBSERVATIONS = ("ram", "pixels", "both", *ENCODED)
# By name: environments and replay do not import each other.
ENCODER, EVENTS = "rlpd_gx.envs.atari.cells:encoder_of", "rlpd_gx.envs.atari.events:events_of"
Encode = Callable[[Array, Array], Array]  # RAM of now and of a step before -> observation
SafeSetOf = Callable[
    [gymnasium.Env, int | None], SafeSet | None
]  # of the live environment and the action that ran


def detect(path: Path) -> bool:
    """JSON, gzipped or not, that starts with an object."""
    try:
        if first_bytes(path, 2) == b"\x1f\x8b":
            with gzip.open(path) as file:
                return file.read(1) == b"{"
        return first_bytes(path, 1) == b"{"
    except Exception:  # damaged bytes raise anything
        return path.name.endswith(".json.gz")  # damaged: let `read` say so


def meaning(path: Path, options: Json) -> Json:
    """What unsafe events and objects are: a game's table may change."""
    log, table = _load(path), options.get("table")
    events = _events(log, table)
    found: Json = {"unsafe_events": None if events is None else events.meaning}
    if (observation := options.get("observation")) in ENCODED:
        found[observation] = _encoder(observation, log, table).fingerprint
    return found


def read(
    path: Path,
    observation: str = "ram",
    safe_set: SafeSetOf | None = None,
    table: str | None = None,
    life_loss_ends: bool = False,
    clip_rewards: bool = False,
) -> Source:
    """Replay; `observation` is `ram` [128], `pixels` [84, 84] grey, `both` as a dict, `objects` or `cells` [n].

    `table` is the game's table of objects and unsafe events, where it is not one of the 26. In a game without a table,
    a lost life is an unsafe event; without lives either, unsafe events are unknown.
    `safe_set(env, action)` returns the safe set at each observation, from the live environment, before that action of
    the log runs (None: after the last one); None is unknown.
    `life_loss_ends` and `clip_rewards` are those of our Atari environments: each life is an episode, rewards are signs.
    """
    try:
        import ale_py
    except ImportError:
        raise missing_extra("ale-py", "atari") from None
    if observation not in OBSERVATIONS:
        raise GxError(f"observation is {observation!r}, but it must be one of: {', '.join(OBSERVATIONS)}")
    log = _load(path)
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    try:
        env = gymnasium.make(log["env_id"], **log["kwargs"])
        count = int(env.action_space.n)  # type: ignore[attr-defined]
    except Exception as error:  # the emulator raises its own kinds for a mode or a game it does not have
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise problem(path, "env_id", None, f"cannot be made ({reason})", "fix env_id and kwargs") from None
    encode = _encoder(observation, log, table) if observation in ENCODED else None
    replay = _Replay(path, env, log, observation, safe_set, encode, _events(log, table))

    def episodes() -> Iterator[Episode]:
        for index, record in enumerate(log["episodes"]):
            episode = replay.episode(index, record)
            source.safe_set_spec = replay.safe_set_spec
            if clip_rewards:
                episode.rewards = np.sign(episode.rewards)
            if life_loss_ends:
                yield from episode.split(np.diff(record["lives"]) < 0)
            else:
                yield episode

    source = Source(
        episodes=episodes(),
        env_id=log["env_id"],
        total_steps=sum(len(record["ale_actions"]) for record in log["episodes"]),
        actions=ActionRange(count=count),
    )
    return source


class _Replay:
    """One emulator that plays the episodes again and compares."""

    def __init__(
        self,
        path: Path,
        env: Any,
        log: Json,
        observation: str,
        safe_set: SafeSetOf | None,
        encode: Encode | None = None,
        events: Any = None,
    ) -> None:
        self.path, self.env, self.frameskip = path, env, int(log["kwargs"]["frameskip"])
        self.observation, self.safe_set, self.encode, self.events = observation, safe_set, encode, events
        self.has_lives = any(any(record["lives"]) for record in log["episodes"])
        self.ram: Array | None = None  # of the step before
        self.safe_set_spec: Spec | None = None
        self.index_of = {action.value: index for index, action in enumerate(env.unwrapped._action_set)}

    def episode(self, number: int, record: Json) -> Episode:
        ale = self.env.unwrapped.ale
        actions = record["ale_actions"]
        self.env.reset(seed=int(record["seed"]))
        self.ram = None
        self._compare(number, 0, "lives", ale.lives(), record["lives"][0])
        observations = [self._observe(ale, ale.getScreenGrayscale())]
        sets, happened = [], []
        if self.events is not None:
            self.events.begin(ale)
        for step, ale_id in enumerate(actions):
            if ale_id not in self.index_of:
                raise self._differs(number, step, "ale_actions", f"{ale_id} is no action of this environment")
            if ale.game_over():
                raise self._differs(number, step, "ale_actions", "the game was over before this step")
            if self.safe_set:
                sets.append(self.safe_set(self.env, self.index_of[ale_id]))
            action = self.env.unwrapped._action_set[self.index_of[ale_id]]
            reward, worst, before_last = 0.0, 0.0, None
            for frame in range(self.frameskip):
                if frame == self.frameskip - 1 and self.observation in ("pixels", "both"):
                    before_last = ale.getScreenGrayscale()
                of_frame = ale.act(action)
                reward, worst = reward + of_frame, min(worst, of_frame)
            self._compare(number, step, "rewards", reward, record["rewards"][step])
            self._compare(number, step, "lives", ale.lives(), record["lives"][step + 1])
            observations.append(self._observe(ale, before_last))
            if self.events is not None:
                happened.append(self.events(ale, worst))
        if self.safe_set:
            sets.append(self.safe_set(self.env, None))
        terminated = bool(ale.game_over(with_truncation=False))
        self._compare(number, len(actions) - 1, "terminated", terminated, record["terminated"])
        lives = np.asarray(record["lives"])
        unsafe = np.asarray(happened, bool) if self.events is not None else None
        if unsafe is None and self.has_lives:
            unsafe = np.diff(lives) < 0
        codes, known, self.safe_set_spec = encode_sets(sets, self.safe_set_spec)
        return Episode(
            observations=self._stacked(observations),
            actions=np.array([self.index_of[ale_id] for ale_id in actions]),
            rewards=np.asarray(record["rewards"], np.float32),
            terminated=terminated,
            truncated=record["truncated"] or not terminated,
            unsafe_events=unsafe,
            safe_sets=codes,
            safe_sets_known=known,
            extras={"lives": lives[1:], "episode": np.full(len(actions), number)},
        )

    def _observe(self, ale: Any, before_last: Array | None) -> dict[str, Array]:
        parts: dict[str, Array] = {}
        if self.encode is not None:
            ram = ale.getRAM()
            parts[self.observation] = self.encode(ram, ram if self.ram is None else self.ram)
            self.ram = ram
            return parts
        if self.observation != "pixels":
            parts["ram"] = ale.getRAM()
        if self.observation != "ram":
            parts["pixels"] = grey84(ale.getScreenGrayscale(), before_last)
        return parts

    def _stacked(self, observations: list[dict[str, Array]]) -> Array | dict[str, Array]:
        columns = trees.stack(observations)
        return columns if self.observation == "both" else columns[self.observation]

    def _compare(self, number: int, step: int, field: str, replayed: float, recorded: float) -> None:
        if replayed != recorded:
            raise self._differs(number, step, field, f"{recorded} was recorded, the replay gives {replayed}")

    def _differs(self, number: int, step: int, field: str, what: str) -> GxError:
        return GxError(
            f"{self.path}: {field!r}, episode {number}, step {step}: {what}; the log is damaged or was made "
            "with another emulator, ROM or setting, so it cannot be used"
        )


def _encoder(observation: str, log: Json, table: str | None) -> Any:
    return load(ENCODER, "observation")[0](observation, table or _game(log))


def _events(log: Json, table: str | None) -> Any:
    return load(EVENTS, "observation")[0](table or _game(log))


def _game(log: Json) -> str:
    return str(log["env_id"]).removeprefix("ALE/").partition("-")[0]


def _load(path: Path) -> Json:
    """The log, with everything in it of the right type and length."""
    raw = gunzip(path) if first_bytes(path, 2) == b"\x1f\x8b" else path.read_bytes()
    with reading(f"{path}: as JSON"):
        log = json.loads(raw)
    for field, kind in (("env_id", str), ("kwargs", dict), ("episodes", list)):
        if not isinstance(log, dict) or field not in log:
            raise problem(path, field, None, "is missing", "give a log with env_id, kwargs and episodes")
        if not isinstance(log[field], kind):
            raise problem(path, field, None, f"is not a JSON {kind.__name__}", AGAIN)
    if not log["env_id"].startswith("ALE/"):  # an id like module:name would import what a file names
        raise problem(path, "env_id", None, f"is {log['env_id']!r}", "only ALE/... games can be replayed")
    frameskip = log["kwargs"].get("frameskip")
    if not (_is_whole(frameskip) and 1 <= frameskip <= LONGEST_FRAMESKIP):
        what = f"has no fixed frameskip from 1 to {LONGEST_FRAMESKIP}"
        raise problem(path, "kwargs", None, what, "only a deterministic log can be replayed")
    if odd := sorted(log["kwargs"].keys() - set(KWARGS)):
        raise problem(path, "kwargs", None, f"has {odd[0]!r}", f"a log may set {', '.join(KWARGS)}")
    for number, episode in enumerate(log["episodes"]):
        where = f"episode {number}"
        for field, (expected, holds) in FIELDS.items():
            if not isinstance(episode, dict) or field not in episode:
                raise problem(path, field, where, "is missing", AGAIN)
            if not holds(episode[field]):
                raise problem(path, field, where, f"is not {expected}", AGAIN)
        steps = len(episode["ale_actions"])
        if not steps:
            raise problem(path, "ale_actions", where, "has no steps", "leave the episode out")
        for field, count in (("rewards", steps), ("lives", steps + 1)):
            if len(episode[field]) != count:
                raise problem(path, field, where, f"has {len(episode[field])} entries, not {count}", AGAIN)
    return dict(log)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object, entry: Check) -> bool:
    return isinstance(value, list) and all(map(entry, value))
