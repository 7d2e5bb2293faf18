"""Recording: episodes of any Gymnasium environment, written as a Minari dataset or as an action log."""

import copy
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rlpd_gx import files, trees
from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.replay.offline.episode import Episode, encode_sets
from rlpd_gx.replay.offline.formats import minari as minari_format
from rlpd_gx.safe_sets import SafeSet, Spec
from rlpd_gx.trees import Json, JsonMapping, Tree
from rlpd_gx.types import Action, Array, Info, executed_action

EMPTY_EPISODES = 10  # in a row, before giving up


class Sink(Protocol):
    """Where finished episodes go."""

    def add(self, episode: Episode, start: JsonMapping) -> None:
        """One finished episode; `start` has the `seed` of its reset and the `lives` it began with."""

    def close(self, facts: JsonMapping) -> None:
        """Finish: add facts that are known only now, and give the file or folder its name."""

    def discard(self) -> None:
        """Leave nothing behind."""


class Recorder(gymnasium.Wrapper[Tree, Action, Tree, Action]):
    """Hands every episode to a sink. Each reset is seeded (`seed`, `seed + 1`, ...), so it can be repeated.

    A guarded environment below reports its verdict in `info["guardian"]`; then the executed action is
    recorded beside the proposed one. `unsafe_event(observation, reward, terminated, truncated, info)` is
    true where what the rules exist to prevent has happened; without it, a lost life counts where the game counts
    lives. Verdicts hold the safe set before each step; `safe_set()` gives the one after the last step.
    """

    def __init__(
        self,
        env: gymnasium.Env[Tree, Action],
        sink: Sink,
        seed: int,
        unsafe_event: Callable[..., bool] | None = None,
        safe_set: Callable[[], SafeSet | None] | None = None,
    ) -> None:
        super().__init__(env)
        self.sink = sink
        self.unsafe_event, self.safe_set = unsafe_event, safe_set
        self.safe_set_spec: Spec | None = None
        self.next_seed = seed
        self.stop_reason = ""  # why the Guardian last let nothing be executed
        self.episodes = self.steps = 0
        self._rows: list[Json] = []
        self._observations: list[Tree] = []
        self._start: Json = {}
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Tree, Info]:
        """A new episode; an unfinished one is recorded as truncated."""
        self.finish()
        observation, info = self.env.reset(seed=self.next_seed, options=options)
        self._check_observation(observation, f"at the reset with seed {self.next_seed}")
        self._start = {"seed": self.next_seed, "lives": info.get("lives")}
        self.next_seed += 1
        self._observations = [trees.map_leaves(np.array, observation)]  # environments may reuse their arrays
        self._lives = info.get("lives") or 0
        return observation, info

    def step(self, action: Action) -> tuple[Tree, SupportsFloat, bool, bool, Info]:
        """One step, recorded."""
        outcome = observation, reward, terminated, truncated, info = self.env.step(action)
        if "guardian_stop" in info:  # nothing was executed, so there is no step to record
            self.stop_reason = info["guardian_stop"]
            self.finish(stopped=True)
            return outcome
        after = f"after {len(self._rows) + 1} steps of the episode with seed {self._start['seed']}"
        self._check_observation(observation, after)
        try:
            finite = math.isfinite(reward)
        except TypeError:
            raise self._bad("reward", f"is {reward!r:.80}, not a number", after) from None
        if not finite:
            raise self._bad("reward", f"is {float(reward)}", after)
        verdict = info.get("guardian")
        row = {
            "guarded": verdict is not None,
            "proposed_action": np.array(action if verdict is None else verdict.proposed),
            "action": np.array(executed_action(action, info, self.action_space.dtype)),
            # Where a rule failed, the answers of the others are not the safe set.
            "safe_set": None if verdict is None or verdict.reason else verdict.safe_set,
            "margin": np.nan if verdict is None else verdict.executed_margin,
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "extras": {
                name: value for name, value in info.items() if np.isscalar(value) and _is_number(value)
            },
        }
        if self.unsafe_event is not None:
            row["unsafe_event"] = bool(self.unsafe_event(*outcome))
        elif self._start["lives"]:  # 0 at the start: a game without a lives counter
            row["unsafe_event"] = info["lives"] < self._lives
            self._lives = info["lives"]
        self._rows.append(row)
        self._observations.append(trees.map_leaves(np.array, observation))
        self.steps += 1
        if terminated or truncated:
            self.finish()
        return outcome

    def finish(self, stopped: bool = False) -> None:
        """Pass on the episode so far; truncated, if the environment did not end it.

        `stopped`: the Guardian let nothing be executed, as the rules cannot be asked in the last state.
        """
        rows, self._rows = self._rows, []
        if not rows:
            return

        def column(name: str) -> Array:
            return np.array([row[name] for row in rows])

        guarded = bool(column("guarded").all())
        codes, known = self._safe_sets([row["safe_set"] for row in rows], stopped)
        self.sink.add(
            Episode(
                observations=trees.stack(self._observations),
                actions=column("action"),
                rewards=column("reward"),
                terminated=rows[-1]["terminated"],
                truncated=rows[-1]["truncated"] or not rows[-1]["terminated"],
                proposed_actions=column("proposed_action") if guarded else None,
                margins=column("margin") if guarded else None,
                unsafe_events=column("unsafe_event") if "unsafe_event" in rows[0] else None,
                safe_sets=codes,
                safe_sets_known=known,
                extras={
                    name: np.array([row["extras"][name] for row in rows])
                    for name in rows[0]["extras"]
                    if all(name in row["extras"] for row in rows)
                },
            ),
            self._start,
        )
        self.episodes += 1

    def _check_observation(self, observation: Tree, place: str) -> None:
        """Raise where the recorded file would be refused when it is read, or is not what the space describes."""
        parts = trees.named_leaves(observation, "observation")
        spaces = trees.named_leaves(self.observation_space, "observation")
        # a space of spaces that are not walked here
        if any(space.shape is None for space in spaces.values()):
            return
        if parts.keys() != spaces.keys():
            raise self._bad("observation", f"has parts {sorted(parts)}, its space {sorted(spaces)}", place)
        for name, space in spaces.items():
            given, described = np.asarray(parts[name]), np.dtype(space.dtype)
            if given.shape != space.shape:
                raise self._bad(name, f"has shape {given.shape}, its space {space.shape}", place)
            # float64 where the space says float32 is common and only rounds
            if not np.can_cast(given.dtype, described, "same_kind"):
                raise self._bad(name, f"is {given.dtype}, its space {described}", place)
            if given.dtype.kind == "f" and not np.isfinite(given).all():
                value = "NaN" if np.isnan(given).any() else "infinite"
                raise self._bad(name, f"is {value}", place)

    def _bad(self, name: str, what: str, place: str) -> GxError:
        spec = self.env.unwrapped.spec
        env = spec.id if spec is not None else type(self.env.unwrapped).__name__
        return GxError(f"{env}: {name!r}, {place}: {what}; repair the environment, nothing was written")

    def _safe_sets(self, sets: list[SafeSet | None], stopped: bool) -> tuple[Array | None, Array | None]:
        """Codes [T + 1, width] and which are known; None without a guard or a finite description."""
        if self.safe_set is None:
            return None, None
        try:
            sets = [*sets, None if stopped else self.safe_set()]
        except GxError:  # the rules cannot be asked there
            sets = [*sets, None]
        codes, known, self.safe_set_spec = encode_sets(sets, self.safe_set_spec)
        return codes, known


def roll_out(
    recorder: Recorder,
    policy: Callable[[Tree], Action],
    generator: np.random.Generator,
    *,
    epsilons: tuple[float, ...] = (0.0,),
    episodes: int | None = None,
    steps: int | None = None,
) -> None:
    """Play until enough was recorded. Episode k acts at random with probability `epsilons[k % len]` in each step."""
    space = recorder.action_space
    space.seed(int(generator.integers(2**31)))
    empty = 0
    while not (recorder.steps >= (steps or np.inf) or recorder.episodes >= (episodes or np.inf)):
        epsilon, steps_before = epsilons[recorder.episodes % len(epsilons)], recorder.steps
        observation, _ = recorder.reset()
        over = False
        while not over:
            action = space.sample() if generator.random() < epsilon else policy(observation)
            observation, _, terminated, truncated, _ = recorder.step(action)
            over = terminated or truncated or recorder.steps >= (steps or np.inf)
        recorder.finish()
        empty = empty + 1 if recorder.steps == steps_before else 0
        if empty == EMPTY_EPISODES:
            raise GxError(
                f"{empty} episodes in a row ended before their first step: the Guardian lets nothing be "
                f"executed there ({recorder.stop_reason}); check that the rules can read the state"
            )


def _stored_spec(spec: EnvSpec | None) -> EnvSpec | None:
    """A spec as JSON can hold it: Gymnasium refuses entry points that are classes or functions, so they are named."""
    if spec is None:
        return None
    stored, point = copy.copy(spec), spec.entry_point
    if callable(point):
        stored.entry_point = f"{point.__module__}:{getattr(point, '__qualname__', type(point).__qualname__)}"
    stored.vector_entry_point = None
    return stored


class MinariSink:
    """Writes a Minari dataset folder, frames without loss, episode by episode."""

    def __init__(self, folder: Path, env: gymnasium.Env[Tree, Action], facts: JsonMapping) -> None:
        try:
            import minari
            from minari.dataset.minari_storage import MinariStorage
        except ImportError:
            raise missing_extra("minari", "minari") from None
        self.folder = _free(folder)
        self._writing = files.whole_folder(self.folder)
        hidden = self._writing.__enter__()
        self._storage = MinariStorage.new(
            hidden / "data",
            observation_space=env.observation_space,
            action_space=env.action_space,
            env_spec=_stored_spec(env.unwrapped.spec),  # a guard around it cannot be stored in a spec
            jpeg_encoding=False,
        )
        self._storage.update_metadata(
            {"dataset_id": f"{folder.name}-v0", "minari_version": minari.__version__, **facts}
        )

    def add(self, episode: Episode, start: JsonMapping) -> None:
        """See `Sink`."""
        from minari.data_collector import EpisodeBuffer

        infos = dict(episode.extras)
        for name, column in (
            (minari_format.PROPOSED, episode.proposed_actions),
            (minari_format.MARGIN, episode.margins),
            (minari_format.UNSAFE, episode.unsafe_events),
        ):
            if column is not None:
                infos[name] = column
        of_states = {
            name: column
            for name, column in (
                (minari_format.SAFE_SET, episode.safe_sets),
                (minari_format.SAFE_SET_KNOWN, episode.safe_sets_known),
            )
            if column is not None
        }
        ended = np.zeros(episode.steps, bool)
        ended[-1] = True
        self._storage.update_episodes(
            [
                EpisodeBuffer(
                    seed=start["seed"],
                    observations=episode.observations,
                    actions=episode.actions,
                    rewards=episode.rewards,
                    terminations=ended & episode.terminated,
                    truncations=ended & episode.truncated,
                    # Minari's infos begin with that of the reset, which has no step.
                    infos={
                        name: np.concatenate([np.zeros_like(column[:1]), column])
                        for name, column in infos.items()
                    }
                    | of_states,
                )
            ]
        )

    def close(self, facts: JsonMapping) -> None:
        """See `Sink`."""
        self._storage.update_metadata(facts)
        self._writing.__exit__(None, None, None)

    def discard(self) -> None:
        """See `Sink`."""
        error = GxError("discarded")
        self._writing.__exit__(GxError, error, None)


class ActionLogSink:
    """Writes seeds, ALE actions, rewards and lives: kilobytes from which everything can be replayed."""

    def __init__(self, file: Path, env: gymnasium.Env[Tree, Action], facts: JsonMapping) -> None:
        emulator: Any = env.unwrapped
        if not hasattr(emulator, "ale"):
            raise GxError("an action log needs an Atari environment (ALE/...); choose --format minari")
        spec = emulator.spec
        kwargs = {name: value for name, value in spec.kwargs.items() if name not in ("game", "obs_type")}
        if kwargs.get("repeat_action_probability") != 0 or not isinstance(kwargs.get("frameskip"), int):
            raise GxError(
                "an action log needs a deterministic environment; "
                "use --env-kwargs with repeat_action_probability 0 and one frameskip"
            )
        self.file = _free(file)
        self._ids = [action.value for action in emulator._action_set]
        self._log: Json = {"env_id": spec.id, "kwargs": kwargs, **facts, "episodes": []}

    def add(self, episode: Episode, start: JsonMapping) -> None:
        """See `Sink`."""
        self._log["episodes"].append(
            {
                "seed": start["seed"],
                "ale_actions": [self._ids[action] for action in episode.actions.tolist()],
                "rewards": episode.rewards.tolist(),
                "lives": [start["lives"], *episode.extras["lives"].tolist()],
                "terminated": episode.terminated,
                "truncated": episode.truncated,
            }
        )

    def close(self, facts: JsonMapping) -> None:
        """See `Sink`; facts about safe sets are not kept, since a replay computes them again."""
        of_safe_sets = (minari_format.FINGERPRINT, minari_format.SPEC)
        self._log |= {name: value for name, value in facts.items() if name not in of_safe_sets}
        files.write_bytes(self.file, gzip.compress(json.dumps(self._log).encode(), mtime=0))

    def discard(self) -> None:
        """See `Sink`."""


def _free(path: Path) -> Path:
    if path.exists():
        raise GxError(f"{path}: exists already; name a new one")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GxError(
            f"{path}: cannot be written, as {path.parent} is no folder and cannot be made one ({error.strerror}); "
            "name another place"
        ) from error
    return path.absolute()  # Minari mistakes its own files under a relative path


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)
