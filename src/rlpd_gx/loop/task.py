"""From a config to what a run is made of: guarded environments, offline data, learner, batches."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlpd_gx import guards, schedules, trees
from rlpd_gx.config import Config, LearnerConfig
from rlpd_gx.envs.actions import ActionView
from rlpd_gx.envs.description import describe, learner_space
from rlpd_gx.envs.making import make
from rlpd_gx.errors import GxError, first_line
from rlpd_gx.guardian import Guardian, guarded_layer
from rlpd_gx.guardian.named import guard_options
from rlpd_gx.learner import (
    QLearner,
    SacContinuous,
    SacDiscrete,
    SacFactored,
    SoftDiscrete,
    SupportedDiscrete,
    trainable_devices,
)
from rlpd_gx.loading import load
from rlpd_gx.loop import offline_rules
from rlpd_gx.loop.environments import Environments
from rlpd_gx.replay import samplers
from rlpd_gx.replay.offline import ActionRange, OfflineDataset, as_online_rows, formats
from rlpd_gx.replay.offline import load as load_offline
from rlpd_gx.replay.offline.cache import is_dataset
from rlpd_gx.replay.timeline import Layout
from rlpd_gx.safe_sets import SafeSet, Spec
from rlpd_gx.trees import DType, Json, Tree
from rlpd_gx.types import Array

Counting = Callable[[gym.Env, str], gym.Env]


@dataclass(frozen=True)
class Task:
    """What a config stands for. Nothing is made before it is asked for."""

    config: Config
    counting: Counting | None = None
    """Puts a counter between guard and environment, given the environment and the name of the rules."""

    def make_env(self, *, evaluation: bool = False, audit: Path | None = None, rules: Any = None) -> gym.Env:
        """One environment behind its guard; without rules, the bare environment. `rules` replace those of the task."""
        return self._guarded(evaluation=evaluation, audit=audit, rules=rules)[0]

    def _guarded(
        self, *, evaluation: bool = False, audit: Path | None = None, rules: Any = None
    ) -> tuple[gym.Env, Any, Json]:
        """An environment behind its guard, its rules and the options of the guard."""
        run = self.config.run
        kwargs = self.env_kwargs | (dict(describe(run.env).evaluation_kwargs) if evaluation else {})
        env = make(run.env, **kwargs)
        if not run.rules:
            return env, None, {}
        if run.rules_state:
            load(run.rules_state, "rules-state")  # an error names the flag of this command
        named, options = guard_options(env, run.rules, run.rules_state)
        rules = named if rules is None else rules
        if self.counting is not None:
            env = self.counting(env, run.rules)
        file = None if audit is None else str(audit)
        return self.guard.environment(env, rules, audit=file, **options), rules, options

    @property
    def env_kwargs(self) -> Json:
        """Options of the training environments."""
        run = self.config.run
        return dict(describe(run.env).training_kwargs) | run.env_kwargs

    @cached_property
    def guard(self) -> guards.Guard:
        """What `--guard` chose, with a state of its own."""
        return guards.find(self.config.run.guard).begin(
            self.config.run.seed, watched=self.watches_unsafe_events
        )

    def with_env_kwargs(self, **env_kwargs: Any) -> "Task":
        """The same with other options of the environment, behind the same guard with all that it has learned."""
        run = replace(self.config.run, env_kwargs=self.config.run.env_kwargs | env_kwargs)
        other = Task(replace(self.config, run=run), self.counting)
        vars(other)["guard"] = self.guard
        return other

    @property
    def watches_unsafe_events(self) -> bool:
        """Whether anything looks for unsafe events: without that, having seen none means nothing."""
        run = self.config.run
        beside = getattr(load(run.rules, "rules")[1], "unsafe_event", None) if run.rules else None
        return beside is not None or describe(run.env).reports_unsafe_events

    @property
    def learns_offline(self) -> bool:
        """Whether any minibatch may hold offline rows."""
        run = self.config.run
        return bool(run.offline) and (run.warm_start_updates > 0 or not self.online_only)

    @property
    def online_only(self) -> bool:
        """Whether minibatches of the run (after a warm start) hold online rows alone."""
        return not self.config.run.offline or self.config.data.online_ratio == (1.0,)

    @cached_property
    def example(self) -> "Example":
        """Spaces and the form of safe sets, from one environment that is closed again."""
        with warnings.catch_warnings():  # the training environments will say it
            warnings.simplefilter("ignore", UserWarning)
            env, rules, options = self._guarded()
        env.reset(seed=self.config.run.seed)
        safe_set = described = None
        guarded = guarded_layer(env)
        if guarded is not None:
            safe_set = guarded.safe_set()
            if safe_set is None and (described := guarded.guardian.described()) is not None:
                safe_set = guarded.safe_set(described)
        example = Example(
            observation_space=learner_space(env.observation_space),
            actions=ActionView(env.action_space),
            stack=int(getattr(env.unwrapped, "frame_stack", 1)),
            guardian=None if guarded is None else guarded.guardian,
            described=described,
            safe_set=safe_set,
            embedding=getattr(safe_set, "embedding", None),
            rules=rules,
            options=options,
        )
        env.close()
        return example

    @property
    def encode(self) -> Callable[[SafeSet | None], Array]:
        """A safe set as one stored row [width]."""
        dtype, width = self.layout.safe_set.base, self.layout.safe_set.shape[0]

        def encoded(safe_set: SafeSet | None) -> Array:
            if safe_set is None or not width:
                return np.zeros(width, dtype)
            code = np.asarray(safe_set.encode())
            if len(code) != width:
                raise GxError(
                    f"the rules {self.config.run.rules} returned another number of half-spaces than in the first state "
                    f"(their safe set takes {len(code)} numbers, not {width}), and stored safe sets need one size; "
                    "declare the largest number of rows as max_rows= of the half-space rule"
                )
            return code

        return encoded

    @cached_property
    def layout(self) -> Layout:
        """How a row of experience is stored."""
        example = self.example
        code = np.zeros(0, np.uint8) if example.safe_set is None else np.asarray(example.safe_set.encode())
        action = example.actions.learner_space
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
            bundled = describe(run.env).offline_sets
            if run.offline not in bundled:
                named = f"; {run.env} comes with {', '.join(bundled)}" if bundled else ""
                raise GxError(f"--offline {source}: there is no such file or folder{named}")
            source = bundled[run.offline]
        options: Json = {}
        live = None
        if not is_dataset(source) and formats.detect(source) == "action_log":
            about = describe(run.env)
            options |= about.replay_options
            options |= {name: self.env_kwargs[name] for name in about.replayed_kwargs}
            if run.rules:
                live = offline_rules.while_replayed(
                    source, None, run.rules, run.env, env_kwargs=run.env_kwargs, live_state=run.rules_state
                )
        data = load_offline(
            source,
            options=options,
            where=run.offline_where,
            actions=ActionRange.of_space(example.actions.space),
            live_safe_sets=live,
        )
        if run.rules and example.safe_set is not None:
            state = run.offline_state or None
            data = offline_rules.with_rules(
                data,
                run.rules,
                state,
                run.offline_safe_sets,
                run.env,
                env_kwargs=run.env_kwargs,
                live_state=run.rules_state,
                state_flag="--offline-state",
                guardian=example.described,
            )
        data = as_online_rows(data.with_actions(example.actions.chosen)).in_layout(self.layout)
        return self.guard.offline(data)

    def environments(self, envs: Sequence[gym.Env]) -> Environments:
        """Environments of this task, stepped together."""
        example = self.example
        return Environments(
            envs,
            self.encode,
            example.stack,
            example.safe_set,
            example.described,
            watched=self.watches_unsafe_events,
        )

    def device(self) -> str:
        """What the learner runs on."""
        if self.config.run.device == "auto":
            return next(iter(trainable_devices()))
        try:
            torch.empty(0, device=self.config.run.device)
        except (RuntimeError, AssertionError) as error:
            raise GxError(f"--device {self.config.run.device} cannot be used: {first_line(error)}") from None
        return self.config.run.device

    @property
    def learner_config(self) -> LearnerConfig:
        """The Learner's settings; without safe sets that can be stored, its backup cannot count them."""
        config = self.config.learner
        if self.example.guardian is None or self.example.safe_set is not None:
            return config
        actor = config.actor if config.actor in ("auto", "clone") else "raw"
        return replace(config, backup="none", actor=actor, execution="project")

    @property
    def unbacked_rules(self) -> tuple[str, ...]:
        """Rules that hold at execution but not in the backup: what they read cannot be stored to ask them again."""
        example = self.example
        if example.guardian is None or (example.safe_set is not None and example.described is None):
            return ()
        backed = () if example.described is None else example.described.rules
        named = zip(example.guardian.names, example.guardian.rules, strict=True)
        return tuple(name for name, rule in named if rule not in backed)

    def learner(self) -> QLearner:
        """A new learner for these spaces, as the guard uses it."""
        return self.guard.learner(self._learner(), self.example.actions.learner_space)

    def _learner(self) -> QLearner:
        example, config = self.example, self.learner_config
        # under a guard that only counts, the Learner is trained without safe sets
        aware = (
            self.guard.mode == "enforce" or config.backup != "none" or config.actor in ("masked", "projected")
        )
        common: Json = {
            "safe_set_spec": example.spec if aware else None,
            "seed": self.config.run.seed,
            "device": self.device(),
        }
        space = example.actions.learner_space
        if isinstance(space, gym.spaces.Discrete):
            if config.support and not self.config.run.offline:
                raise GxError(
                    "--support keeps to the actions of offline data, and there is none: give --offline"
                )
            soft = SupportedDiscrete if config.support else SoftDiscrete
            kind = soft if config.actor == "auto" else SacDiscrete
            return kind(config, example.observation_space, space, embedding=example.embedding, **common)
        if config.support:
            kind_of = "continuous" if isinstance(space, gym.spaces.Box) else "too many to list"
            raise GxError(
                f"--support (and --preset bcq) needs discrete actions, and those of {self.config.run.env} are "
                f"{kind_of}; stay near the data by --clone-weight or --preset cql instead"
            )
        if isinstance(space, gym.spaces.MultiDiscrete):
            return SacFactored(config, example.observation_space, space, **common)
        return SacContinuous(config, example.observation_space, space, **common)

    def sampler(self, learner: QLearner) -> samplers.Sampler:
        """Which rows make a minibatch."""
        name = self.config.data.sampler
        if name == "tree-backup" and isinstance(self.example.actions.learner_space, gym.spaces.Box):
            raise GxError("--sampler tree-backup needs discrete actions; choose span or span-cut")
        # Only a guarded backup is about a policy that never takes forbidden actions.
        guarded = self.learner_config.backup != "none"
        make: dict[str, Callable[[], samplers.Sampler]] = {
            "uniform": samplers.Uniform,
            "stride": samplers.Stride,
            "fixed": samplers.fixed,
            "span": lambda: samplers.Span(guarded=guarded),
            "span-cut": lambda: samplers.Span("cut", learner.probability, guarded=guarded),
            "tree-backup": lambda: samplers.Span("tree-backup", guarded=guarded),
        }
        return make[name]()

    def dss(self) -> Callable[[int], float]:
        """DSS or a comparator: the online fraction of a minibatch at each step."""
        run, data = self.config.run, self.config.data
        if not run.offline:
            if data.online_ratio[0] == 0:
                raise GxError(
                    "an online_ratio of 0 learns from offline data, and there is none: give --offline"
                )
            return schedules.Constant(1.0)
        if len(data.online_ratio) == 1:
            return schedules.Constant(data.online_ratio[0])
        start, end = data.online_ratio
        if data.online_schedule == "abrupt":
            return schedules.Abrupt(max(run.steps, 1) // 2, start, end)
        return schedules.Sigmoid(max(run.steps, 1), start, end)

    def dts(self) -> schedules.Interval:
        """DTS: the interval between samples at each step."""
        interval = self.config.data.interval
        return schedules.Interval(max(self.config.run.steps, 1), interval[0], interval[-1])


@dataclass(frozen=True, eq=False)
class Example:
    """What one environment of the task looks like."""

    observation_space: gym.Space
    actions: ActionView
    """The environment's actions, and those that the Learner chooses from."""
    stack: int
    guardian: Guardian | None
    described: Guardian | None
    """Of the rules in the backup, where those are not all of them."""
    safe_set: SafeSet | None
    embedding: Array | None
    rules: Any
    """A rule, several, or None."""
    options: Json
    """What the rules' module says beside them: options of `GuardedEnv`."""

    @property
    def spec(self) -> Spec | None:
        """How to read stored safe sets."""
        return None if self.safe_set is None else self.safe_set.spec


def _frame_dtypes(space: gym.Space, stack: int) -> Tree:
    if isinstance(space, gym.spaces.Dict):
        return trees.map_leaves(_dtype, dict(space.spaces))
    whole = _dtype(space)
    return whole if stack == 1 else np.dtype((whole.base, whole.shape[1:]))


def _dtype(space: gym.Space) -> DType:
    if space.shape is None or space.dtype is None:
        raise GxError(f"the Learner reads arrays (Box, or a dict of them), not {space}")
    # the Learner computes in 32 bits: storing more would only cost memory
    base = np.dtype(np.float32) if space.dtype == np.float64 else space.dtype
    return np.dtype((base, space.shape))
