"""From a config to what a run is made of: guarded environments, offline data, learner, batches."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx import schedules
from rlpd_gx.envs.making import ATARI, make
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import GuardedEnv, Guardian
from rlpd_gx.learner import Sac, SacContinuous, SacDiscrete, trainable_devices
from rlpd_gx.loop import offline_rules
from rlpd_gx.loop.config import Config
from rlpd_gx.loop.guarding import guarded
from rlpd_gx.loop.lanes import Lanes
from rlpd_gx.replay import samplers
from rlpd_gx.replay.offline import ActionRange, OfflineDataset, formats
from rlpd_gx.replay.offline import load as load_offline
from rlpd_gx.replay.offline.cache import is_dataset
from rlpd_gx.replay.timeline import Layout
from rlpd_gx.safe_sets import SafeSet, Spec
from rlpd_gx.types import Array

WHOLE_GAMES = {"life_loss_ends": False, "clip_rewards": False}  # how Atari scores are reported


@dataclass(frozen=True)
class Task:
    """What a config stands for. Nothing is made before it is asked for."""

    config: Config

    def make_env(self, *, evaluation: bool = False, audit: Path | None = None) -> gym.Env:
        """One environment behind its guard; without rules, the bare environment."""
        run = self.config.run
        kwargs = dict(run.env_kwargs)
        if evaluation and run.env.startswith("Atari/"):
            kwargs |= WHOLE_GAMES
        try:
            env = make(run.env, **kwargs)
        except TypeError as error:
            raise GxError(f"--env-kwargs {run.env_kwargs} do not fit {run.env}: {error}") from None
        if not run.rules:
            return env
        mode = "enforce" if run.guard == "guardian" else "monitor"
        file = None if audit is None else str(audit)
        return guarded(env, run.rules, state=run.rules_state, mode=mode, audit=file)

    @cached_property
    def example(self) -> "Example":
        """Spaces and the form of safe sets, from one environment that is closed again."""
        with warnings.catch_warnings():  # the training environments will say it
            warnings.simplefilter("ignore", UserWarning)
            env = self.make_env()
        env.reset(seed=self.config.run.seed)
        safe_set = env.safe_set() if isinstance(env, GuardedEnv) else None
        example = Example(
            observation_space=env.observation_space,
            action_space=env.action_space,
            stack=int(getattr(env.unwrapped, "frame_stack", 1)),
            guardian=env.guardian if isinstance(env, GuardedEnv) else None,
            safe_set=safe_set,
            embedding=getattr(safe_set, "embedding", None),
        )
        env.close()
        return example

    @property
    def encode(self) -> Callable[[SafeSet | None], Array]:
        """A safe set as one stored row [width]."""
        dtype, width = self.layout.safe_set.base, self.layout.safe_set.shape[0]

        def encoded(safe_set: SafeSet | None) -> Array:
            return np.zeros(width, dtype) if safe_set is None or not width else np.asarray(safe_set.encode())

        return encoded

    @cached_property
    def layout(self) -> Layout:
        """How a row of experience is stored."""
        example = self.example
        code = np.zeros(0, np.uint8) if example.safe_set is None else np.asarray(example.safe_set.encode())
        action = example.action_space
        return Layout(
            observation=_frame_dtypes(example.observation_space, example.stack),
            action=np.dtype((np.int64, ())) if isinstance(action, gym.spaces.Discrete) else _dtype(action),
            safe_set=np.dtype((code.dtype, code.shape)),
        )

    @cached_property
    def offline(self) -> OfflineDataset | None:
        """The offline data with the safe sets of these rules, in the layout of the online rows."""
        run, example = self.config.run, self.example
        if not run.offline:
            return None
        source = Path(run.offline)
        if not source.exists():
            raise GxError(f"--offline {source}: there is no such file or folder")
        options: dict[str, Any] = {}
        live = None
        if not is_dataset(source) and formats.detect(source) == "action_log":
            image = isinstance(example.observation_space, gym.spaces.Box) and example.stack == 4
            options["observation"] = "pixels" if image else "ram"
            ours = ATARI.fullmatch(run.env)
            if ours is not None and ours["observation"] == "objects":
                options |= {"observation": "objects", "table": ours["game"]}
            if run.rules:
                live = offline_rules.while_replayed(
                    source, None, run.rules, run.env, env_kwargs=run.env_kwargs, live_state=run.rules_state
                )
        data = load_offline(
            source,
            options=options,
            where=run.offline_where,
            actions=ActionRange.of_space(example.action_space),
            live_safe_sets=live,
        )
        if run.rules:
            state = run.offline_state or None
            data = offline_rules.with_rules(
                data,
                run.rules,
                state,
                run.offline_safe_sets,
                run.env,
                env_kwargs=run.env_kwargs,
                live_state=run.rules_state,
            )
        return data.in_layout(self.layout)

    def lanes(self, envs: Sequence[gym.Env]) -> Lanes:
        """Environments of this task side by side."""
        return Lanes(envs, self.encode, self.example.stack, self.example.safe_set)

    def device(self) -> str:
        """What the learner runs on."""
        if self.config.run.device == "auto":
            return next(iter(trainable_devices()))
        try:
            torch.empty(0, device=self.config.run.device)
        except (RuntimeError, AssertionError) as error:
            first_line = str(error).splitlines()[0]
            raise GxError(f"--device {self.config.run.device} cannot be used: {first_line}") from None
        return self.config.run.device

    def learner(self) -> Sac:
        """A new learner for these spaces."""
        example, config = self.example, self.config.learner
        common: dict[str, Any] = {
            "safe_set_spec": example.spec,
            "seed": self.config.run.seed,
            "device": self.device(),
        }
        if isinstance(example.action_space, gym.spaces.Discrete):
            return SacDiscrete(
                config, example.observation_space, example.action_space, embedding=example.embedding, **common
            )
        if isinstance(example.action_space, gym.spaces.Box):
            return SacContinuous(config, example.observation_space, example.action_space, **common)
        raise GxError(f"the Learner acts in Discrete and Box spaces, not {example.action_space}")

    def sampler(self, learner: Sac) -> samplers.Sampler:
        """Which rows make a minibatch."""
        data = self.config.data
        if data.sampler == "uniform":
            return samplers.Uniform()
        if data.sampler == "stride":
            return samplers.Stride(data.window)
        if data.sampler == "fixed":
            return samplers.fixed(data.window)
        if data.span_correction == "tree-backup" and not isinstance(learner, SacDiscrete):
            raise GxError("span_correction tree-backup needs discrete actions; choose none or cut")
        probability = learner.probability if data.span_correction == "cut" else None
        return samplers.Span(data.span_correction, probability, data.span_threshold)

    def mix(self) -> Callable[[int], float]:
        """DSS or a comparator: the share of online rows at each step."""
        data, total = self.config.data, max(self.config.run.steps, 1)
        if not self.config.run.offline:
            return schedules.Constant(1.0)
        if data.mix == "constant":
            return schedules.Constant(data.mix_high)
        if data.mix == "sigmoid":
            return schedules.Sigmoid(total, data.mix_low, data.mix_high, data.mix_steepness)
        if data.mix == "abrupt":
            return schedules.Abrupt(total // 2, data.mix_low, data.mix_high)
        return schedules.two_stage(total // 2)

    def interval(self) -> schedules.Interval:
        """DTS."""
        data = self.config.data
        total = max(self.config.run.steps, 1)
        return schedules.Interval(total, data.interval_low, data.interval_high, data.interval_exponent)


@dataclass(frozen=True, eq=False)
class Example:
    """What one environment of the task looks like."""

    observation_space: gym.Space
    action_space: gym.Space
    stack: int
    guardian: Guardian | None
    safe_set: SafeSet | None
    embedding: Array | None

    @property
    def spec(self) -> Spec | None:
        """How to read stored safe sets."""
        return None if self.safe_set is None else self.safe_set.spec


def _frame_dtypes(space: gym.Space, stack: int) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _dtype(part) for key, part in space.spaces.items()}
    whole = _dtype(space)
    return whole if stack == 1 else np.dtype((whole.base, whole.shape[1:]))


def _dtype(space: gym.Space) -> np.dtype[Any]:
    if space.shape is None or space.dtype is None:
        raise GxError(f"the Learner reads arrays (Box, or a dict of them), not {space}")
    # the Learner computes in 32 bits: storing more would only cost memory
    base = np.dtype(np.float32) if space.dtype == np.float64 else space.dtype
    return np.dtype((base, space.shape))
