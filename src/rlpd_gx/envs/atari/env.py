"""The Atari task on the emulator itself: observations, no-op starts, lives, and states that can be restored."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rlpd_gx.envs.atari.cells import ENCODERS
from rlpd_gx.envs.atari.games import Game, Moment, find_game
from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.frames import SIDE, grey84
from rlpd_gx.types import Array

STACKS = {"ram": 2, "pixels": 4, "objects": 1, "cells": 1}
NOOP = 0  # index of the action that does nothing, in the minimal and in the full set


@dataclass
class _Play:
    """Where a game stands, besides what the emulator holds."""

    steps: int = 0
    score: float = 0.0
    lives: int = 0
    over: bool = True
    life_lost: bool = False  # in the last step
    untouched: bool = True  # the emulator has not run a frame since it was reset


@dataclass(frozen=True)
class Clone:
    """A state of an `AtariEnv` in this process; only `restore_clone` reads it."""

    emulator: Any
    play: _Play
    ram: Array
    previous_ram: Array
    stack: Array
    screens: Array | None
    generator: dict[str, Any]


class AtariEnv(gym.Env[Array, Any]):
    """One game. Observations: uint8 `ram` [2, 128], `pixels` [4, 84, 84], oldest first; float32 `objects`, `cells` [n].

    What the numbers of the last two are is in `feature_names`; `gx.envs.atari.Objects` and `Cells` have the details.

    `info` always has `score` (raw, of the whole game), `raw_reward`, `lives`, `unsafe_event` (in this step),
    `game_over` (the next reset starts a new game, also where a life is lost at `max_steps`) and `steps` (of the game).
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        game: Game,
        observation: str = "ram",
        *,
        frame_skip: int = 4,
        sticky: float = 0.0,
        noop_max: int = 30,
        full_action_space: bool = False,
        life_loss_ends: bool = False,
        clip_rewards: bool = False,
        max_steps: int = 27_000,
        render_mode: str | None = None,
    ) -> None:
        if observation not in STACKS:
            raise GxError(f"observation is {observation!r}, but it must be one of: {', '.join(STACKS)}")
        if frame_skip < 1 or max_steps < 1 or noop_max < 0 or not 0 <= sticky < 1:
            raise GxError(
                f"frame_skip {frame_skip}, max_steps {max_steps}, noop_max {noop_max}, sticky {sticky}: give "
                "frame_skip and max_steps of at least 1, noop_max of at least 0 and sticky in [0, 1)"
            )
        if render_mode not in (None, "rgb_array"):
            raise GxError(f"render_mode is {render_mode!r}, but it must be None or 'rgb_array'")
        ale_py = _ale_py()
        self.game, self.observation, self.render_mode = game, observation, render_mode
        self.frame_skip, self.noop_max, self.max_steps = frame_skip, noop_max, max_steps
        self.life_loss_ends, self.clip_rewards = life_loss_ends, clip_rewards
        self.frame_stack = STACKS[observation]  # axis 0 of an observation is a stack of this many frames
        self.settings: dict[str, Any] = {
            "game": game.name,
            "observation": observation,
            "frame_skip": frame_skip,
            "sticky": sticky,
            "noop_max": noop_max,
            "full_action_space": full_action_space,
            "life_loss_ends": life_loss_ends,
            "clip_rewards": clip_rewards,
            "max_steps": max_steps,
        }
        self.spec = EnvSpec(
            f"Atari/{game.name}-{observation}", f"{__name__}:make", kwargs=dict(self.settings)
        )
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", sticky)
        self._seed(None)
        self.actions = self.ale.getLegalActionSet() if full_action_space else self.ale.getMinimalActionSet()
        self.action_meanings = tuple(action.name for action in self.actions)
        self.action_space = gym.spaces.Discrete(len(self.actions))
        self._objects = ENCODERS[observation](game) if observation in ENCODERS else None
        self.observation_space = (
            gym.spaces.Box(0, 255, (2, 128) if observation == "ram" else (4, SIDE, SIDE), np.uint8)
            if self._objects is None
            else self._objects.space
        )
        self._play = _Play()
        self._ram = self._previous_ram = self.ale.getRAM()
        # Replaced in each step, never written to: clones may keep it.
        self._stack = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        # [-2] the frame before the last of a step, [-1] the brighter of both, as AtariPreprocessing keeps them
        self._screens = (
            np.zeros((2, *self.ale.getScreenDims()), np.uint8) if observation == "pixels" else None
        )

    @property
    def embedding(self) -> Array:
        """Joystick positions (dx, dy, 0.5 * fire) [n, 3]: how near actions are to each other."""
        return np.array(
            [
                [
                    ("RIGHT" in name) - ("LEFT" in name),
                    ("UP" in name) - ("DOWN" in name),
                    0.5 * name.endswith("FIRE"),
                ]
                for name in self.action_meanings
            ],
            dtype=float,
        )

    @property
    def lives(self) -> int:
        """The lives left; 0 in games without a counter."""
        return self._play.lives

    @property
    def game_over(self) -> bool:
        """Whether the game has ended, not only a life."""
        return self._play.over

    @property
    def _terminated(self) -> bool:
        return self._play.over or (self.life_loss_ends and self._play.life_lost)

    @property
    def _goes_on(self) -> bool:
        """Whether a reset continues the game: after a lost life, with room for its NOOP and a step below the limit."""
        play = self._play
        return self.life_loss_ends and play.life_lost and not play.over and play.steps < self.max_steps - 1

    def ram(self) -> Array:
        """RAM [128] after the last step, also right after a restore, when the emulator's own copy is stale."""
        return self._ram

    def previous_ram(self) -> Array:
        """RAM [128] a step before; at the start of an episode, that of now."""
        return self._previous_ram

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What each number of an `objects` observation is."""
        if self._objects is None:
            raise GxError(
                f"observation is {self.observation!r}: only {' and '.join(ENCODERS)} have names for their numbers"
            )
        return self._objects.names

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """A new game; after a lost life that ended an episode, the same game goes on with one NOOP step."""
        super().reset(seed=seed)
        play, reward, unsafe_event = self._play, 0.0, False
        goes_on = self._goes_on and seed is None
        if goes_on:
            reward, unsafe_event = self.advance(NOOP)
        if play.over or not goes_on:
            self._new_game(seed)
            reward, unsafe_event = 0.0, False
        self._play.life_lost = False
        self._previous_ram = self._ram
        frame = self._frame()
        self._stack = frame if self._objects else np.repeat(frame[None], self.frame_stack, axis=0)
        return self._stack.copy(), self._info(reward, unsafe_event)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One action for `frame_skip` frames."""
        if self._terminated or self._play.steps >= self.max_steps:
            raise gym.error.ResetNeeded("the episode is over: call reset() first")
        reward, unsafe_event = self.advance(action)
        frame = self._frame()
        self._stack = frame if self._objects else np.concatenate((self._stack[1:], frame[None]))
        terminated = self._terminated
        truncated = not terminated and self._play.steps >= self.max_steps
        info = self._info(reward, unsafe_event)
        info["game_over"] |= terminated and not self._goes_on
        returned = float(np.sign(reward)) if self.clip_rewards else reward
        return self._stack.copy(), returned, terminated, truncated, info

    def advance(self, action: int) -> tuple[float, bool]:
        """A step without its observation, for looking ahead: (raw reward, unsafe event).

        `restore_clone` must follow before the next `step`, whose observation would miss a frame.
        """
        ale, play = self.ale, self._play
        before = Moment(self._ram, play.lives, play.over)
        ale_action = self.actions[action]
        total = worst = 0.0
        for frame in range(self.frame_skip):
            reward = ale.act(ale_action)
            total += reward
            worst = min(worst, reward)
            if ale.game_over():
                play.over = True
                break  # as in AtariPreprocessing, the screens of a step that ends the game stay as they are
            if self._screens is not None and frame >= self.frame_skip - 2:
                ale.getScreenGrayscale(self._screens[frame - self.frame_skip])
        lives = ale.lives()
        self._previous_ram, self._ram = self._ram, ale.getRAM()
        play.untouched = False
        play.steps += 1
        play.score += total
        play.life_lost = lives < play.lives
        play.lives = lives
        return total, self.game.unsafe(before, Moment(self._ram, lives, play.over), worst)

    def clone(self) -> Clone:
        """The whole state, for this process. Chance is included: what follows a restore is the same."""
        return Clone(
            self.ale.cloneState(include_rng=True),
            copy.copy(self._play),
            self._ram,
            self._previous_ram,
            self._stack,
            None if self._screens is None else self._screens.copy(),
            dict(self.np_random.bit_generator.state),
        )

    def restore_clone(self, clone: Clone) -> None:
        """Back to a clone of this environment or of one with the same settings."""
        self._load(clone.emulator, clone.play.untouched)
        self._play = copy.copy(clone.play)
        self._ram, self._previous_ram, self._stack = clone.ram, clone.previous_ram, clone.stack
        if clone.screens is not None:
            self._screens = clone.screens.copy()
        self.np_random.bit_generator.state = clone.generator

    def snapshot(self) -> dict[str, Any]:
        """The whole state as arrays and plain values, to be restored in another process."""
        clone = self.clone()
        return {
            "settings": dict(self.settings),
            "emulator": np.frombuffer(clone.emulator.serialize(), np.uint8).copy(),
            "play": asdict(clone.play),
            "ram": clone.ram.copy(),
            "previous_ram": clone.previous_ram.copy(),
            "stack": clone.stack.copy(),
            **({} if clone.screens is None else {"screens": clone.screens}),
            "generator": clone.generator,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Back to a snapshot of an environment with the same settings."""
        for name, value in self.settings.items():
            if snapshot["settings"].get(name) != value:
                raise GxError(
                    f"the snapshot is of {snapshot['settings'].get('game')} with {name} "
                    f"{snapshot['settings'].get(name)!r}, this environment has {value!r}; make it the same way"
                )
        emulator = _ale_py().ALEState(np.asarray(snapshot["emulator"], np.uint8).tobytes())
        screens = snapshot.get("screens")
        self.restore_clone(
            Clone(
                emulator,
                _Play(**snapshot["play"]),
                np.array(snapshot["ram"], np.uint8),
                np.array(snapshot["previous_ram"], np.uint8),
                np.array(snapshot["stack"], self.observation_space.dtype),
                None if screens is None else np.array(screens, np.uint8),
                snapshot["generator"],
            )
        )

    def render(self) -> Array:
        """The screen in colour, uint8 [height, width, 3]; right after a restore it is one step old."""
        return self.ale.getScreenRGB()

    def _seed(self, seed: int | None) -> None:
        """Both generators from one seed, as ale-py's own environment derives them: same seed, same no-ops."""
        own, emulator = np.random.SeedSequence(seed).generate_state(2)
        self._np_random, self._np_random_seed = gym.utils.seeding.np_random(int(own))
        self.ale.setInt("random_seed", np.int32(emulator))
        self.ale.loadROM(_ale_py().roms.get_rom_path(self.game.rom))  # only loading reads the seed

    def _new_game(self, seed: int | None) -> None:
        if seed is not None:
            self._seed(seed)
        self.ale.reset_game()
        noops = int(self.np_random.integers(1, self.noop_max + 1)) if self.noop_max else 0
        for _ in range(noops):
            self.ale.act(self.actions[NOOP])
            if self.ale.game_over():
                self.ale.reset_game()
        self._ram = self.ale.getRAM()
        self._play = _Play(lives=self.ale.lives(), over=False, untouched=noops == 0)
        if self._screens is not None:
            self.ale.getScreenGrayscale(self._screens[-1])
            self._screens[-2].fill(0)

    def _load(self, emulator: Any, untouched: bool) -> None:
        """Restore the emulator.

        Its states lack one bit, whether a frame was left half drawn. In Qbert that is so after a reset until the
        first frame has run, and a wrong bit shifts the game by a frame: bring the emulator to the right side.
        """
        if untouched:
            self.ale.reset_game()
        elif self._play.untouched:
            self.ale.act(self.actions[NOOP])
        self.ale.restoreState(emulator)

    def _frame(self) -> Array:
        """The newest frame of the stack."""
        if self._objects is not None:
            return self._objects(self._ram, self._previous_ram)
        if self._screens is None:
            return self._ram
        if self.frame_skip > 1:
            np.maximum(self._screens[-1], self._screens[-2], out=self._screens[-1])
        return grey84(self._screens[-1])

    def _info(self, raw_reward: float, unsafe_event: bool) -> dict[str, Any]:
        return {
            "score": self._play.score,
            "raw_reward": raw_reward,
            "lives": self._play.lives,
            "unsafe_event": unsafe_event,
            "game_over": self._play.over,
            "steps": self._play.steps,
        }


def make(game: str, observation: str = "ram", **settings: Any) -> AtariEnv:
    """An environment of one of the 26 games; settings as of `AtariEnv`."""
    return AtariEnv(find_game(game), observation, **settings)


def make_vec(
    game: str,
    num_envs: int,
    observation: str = "ram",
    *,
    asynchronous: bool = False,
    autoreset_mode: gym.vector.AutoresetMode = gym.vector.AutoresetMode.NEXT_STEP,
    **settings: Any,
) -> gym.vector.VectorEnv:
    """Several of them, in this process or, `asynchronous`, one process each."""
    found = find_game(game)

    def one() -> gym.Env:
        return AtariEnv(found, observation, **settings)

    many: list[Callable[[], gym.Env]] = [one] * num_envs
    kind = gym.vector.AsyncVectorEnv if asynchronous else gym.vector.SyncVectorEnv
    return kind(many, autoreset_mode=autoreset_mode)


def _ale_py() -> Any:
    try:
        import ale_py
        import ale_py.roms
    except ImportError:
        raise missing_extra("ale-py", "atari") from None
    return ale_py
