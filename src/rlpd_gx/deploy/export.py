"""Exported policies: actor and guard in one folder that needs neither the run nor its environment."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from rlpd_gx import __version__, guards, settings
from rlpd_gx.config import Config
from rlpd_gx.deploy import spaces
from rlpd_gx.envs.actions import ActionView
from rlpd_gx.envs.description import learner_view
from rlpd_gx.envs.making import make
from rlpd_gx.errors import GxError
from rlpd_gx.files import whole_folder
from rlpd_gx.guardian import Guardian
from rlpd_gx.guardian.named import named_rules
from rlpd_gx.learner.policy import PolicyNetwork, restored
from rlpd_gx.loop.guard_identity import OPTIONS, GuardIdentity
from rlpd_gx.loop.resume import last_saved, restored_learner
from rlpd_gx.loop.task import Task
from rlpd_gx.rules import Rule
from rlpd_gx.safe_sets import SafeSet, Spec, code_width
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.trees import Json, JsonMapping, Tree
from rlpd_gx.types import Array, Context, ContextLike, Observation, State, Status, Verdict

FORMAT = 3
TENSORS, ABOUT = "policy.safetensors", "policy.json"
ASKED = ("env", "env_kwargs", "rules", "rules_state", "guard")  # settings of the run that are exported


@dataclass(frozen=True, eq=False)
class Export:
    """A policy and its guard as plain data."""

    about: Json
    """The content of policy.json: spaces, settings, rules with fingerprints, and the training run."""
    tensors: Mapping[str, Tensor]
    """Actor and encoder: the `state_dict()` of the policy network."""
    source: str
    """The folder it was read from, for error messages."""
    run: Task | None = None
    """The task of the run it was read from, with all that its guard has learned."""

    @classmethod
    def find(cls, path: str | os.PathLike[str]) -> "Export":
        """The policy of an exported folder, or of a run as it was last saved."""
        path = Path(path)
        if (path / ABOUT).exists():
            return cls.read(path)
        if (path / "config.json").exists():
            return cls.of_run(path)
        raise GxError(f"{path}: holds neither an exported policy ({ABOUT}) nor a run (config.json)")

    @classmethod
    def of_run(cls, path: Path) -> "Export":
        """The policy of a run as it was last saved."""
        folder, task, loaded = last_saved(path)
        config, example = task.config, task.example
        if not task.guard.learns:
            raise GxError(f"{path}: was run with --guard {config.run.guard}, which trains no policy")
        asked, declared = settings.flat(config), example.options.get("embedding")
        about: Json = {
            "format": FORMAT,
            "rlpd_gx": __version__,
            "python": platform.python_version(),
            **{name: asked[name] for name in ASKED},
            "observation_space": spaces.to_json(example.observation_space),
            "action_space": spaces.to_json(example.actions.space),
            "learner": asdict(config.learner),
            "embedding": None if declared is None else np.asarray(declared).tolist(),
            "safe_set_spec": example.spec,
            "trained": {"command": folder.command, "seed": config.run.seed, "step": loaded.step},
        }
        identity = GuardIdentity.of_task(task)
        if identity.unreadable:
            raise GxError(
                f"{path}: a policy under {config.run.rules} could not be loaded again, since no fingerprint covers "
                f"{', '.join(identity.unreadable)}; read such things when the module is imported, and train again"
            )
        about["fingerprints"] = dict(identity.fingerprints)
        if not task.guard.exportable:  # its environments ask what it has learned
            restored_learner(task, loaded.state)
        return cls(about, loaded.state["learner"]["policy"], str(path), task)

    @classmethod
    def read(cls, path: Path) -> "Export":
        """An exported folder, with its checksums verified."""
        try:
            about = json.loads((path / ABOUT).read_bytes())
            tensors = (path / TENSORS).read_bytes()
        except OSError as error:
            raise GxError(
                f"{error.filename}: cannot be read: {error.strerror}; export the run again"
            ) from None
        except ValueError:
            about = None
        if not isinstance(about, dict):
            raise GxError(f"{path / ABOUT}: is damaged (it is no JSON object); export the run again")
        if about.get("format") != FORMAT:
            raise GxError(
                f"{path / ABOUT}: has format {about.get('format')!r}, this version of rlpd-gx reads {FORMAT}; export "
                "the run with this version"
            )
        digests = about.pop("sha256", {})
        for name, found in _digests(about, tensors).items():
            if digests.get(name) != found:
                raise GxError(
                    f"{path / name}: is damaged or was changed (its sha256 differs); export the run again"
                )
        return cls(about, tensors_from_bytes(tensors), str(path))

    def write(self, folder: Path) -> None:
        """Make a new folder, or nothing."""
        self.refuse_other_execution()
        if folder.exists():
            raise GxError(f"{folder}: exists already; choose another --out")
        tensors = tensors_to_bytes({name: t.cpu().contiguous() for name, t in self.tensors.items()})
        about = json.dumps(self.about | {"sha256": _digests(self.about, tensors)}, indent=2)
        with whole_folder(folder) as temporary:
            (temporary / TENSORS).write_bytes(tensors)
            (temporary / ABOUT).write_text(f"{about}\n")

    def refuse_other_execution(self) -> None:
        """Raise if the guard of the training executed something else than its rules alone decide."""
        guard = self.about["guard"]
        try:
            exportable = guards.find(guard).exportable
        except GxError:  # an unknown guard is refused where it is used
            return
        if self.about["rules"] and not exportable:
            raise GxError(
                f"{self.source}: was trained with --guard {guard}, whose corrections follow from more than the rules, "
                "so a policy outside its run could not repeat them; use the run itself (`rlpd-gx play`, "
                "`gx.Run(folder).evaluate()`), or train under another guard"
            )

    @property
    def observation_space(self) -> gym.Space:
        """Observations of the policy."""
        return spaces.from_json(self.about["observation_space"])

    @property
    def action_space(self) -> gym.Space:
        """Actions of the policy."""
        return spaces.from_json(self.about["action_space"])

    def task(self, **env_kwargs: Any) -> Task:
        """The task it was trained on, with other options of the environment."""
        if self.run is not None:
            return self.run.with_env_kwargs(**env_kwargs)
        asked = {name: self.about[name] for name in ASKED}
        asked["env_kwargs"] = asked["env_kwargs"] | env_kwargs
        return Task(settings.with_values(Config(), asked, f"{self.source}/{ABOUT}"))

    def network(self, seed: int = 0) -> PolicyNetwork:
        """The actor on the CPU; `seed` is for sampled actions."""
        config = settings.with_values(Config(), self.about["learner"], f"{self.source}/{ABOUT}").learner
        spec = self.about["safe_set_spec"]
        chosen_from = ActionView(self.action_space).learner_space
        return restored(self.tensors, config, self.observation_space, chosen_from, spec, seed)

    def guard(
        self, rules: Rule | Iterable[Rule] | None = None, options: JsonMapping | None = None
    ) -> "PolicyGuard | None":
        """The guard as it is now: the rules given with their options, or those of the module that is named.

        None for a policy without rules.
        """
        named, guard = self.about["rules"], self.about["guard"]
        if not named:
            if rules is not None:
                raise GxError(f"{self.source}: was trained without rules; load it without rules=")
            return None

        def env() -> gym.Env:  # called only for rules that are made for an environment
            return make(self.about["env"], **self.about["env_kwargs"])

        try:
            if rules is None:
                rules, options = named_rules(named, self.about["rules_state"], env)
            elif ":" in guard:
                raise GxError(f"its guard {guard} would have to be imported; load it without rules=")
            mode = guards.find(guard).mode
        except GxError as error:
            raise GxError(f"{self.source}: the guard of this policy cannot be used: {error}") from None
        beside = dict(options or {})
        guardian = Guardian(
            self.action_space,
            rules,
            embedding=self.about["embedding"],
            mode=mode,
            **{name: beside[name] for name in ("fallback", "near_miss") if name in beside},
        )
        identity = GuardIdentity.of(rules, beside, guard, guardian)
        return PolicyGuard(guardian, identity, reads_more=beside.get("state") is not None)


@dataclass(frozen=True, eq=False)
class PolicyGuard:
    """The guard of a policy."""

    guardian: Guardian
    identity: GuardIdentity
    reads_more: bool
    """Whether the rules read more than the observation."""


class Policy:
    """Proposes with the actor and certifies with the rules it was trained under: same state and context, same verdict.

    Rules that read more than the observation need `state`.
    """

    def __init__(
        self,
        export: Export,
        seed: int = 0,
        rules: Rule | Iterable[Rule] | None = None,
        options: JsonMapping | None = None,
    ) -> None:
        self.export = export
        self.observation_space, self.action_space = export.observation_space, export.action_space
        self.network = export.network(seed)
        guard = export.guard(rules, options)
        if guard is not None:
            _refuse_changes(export, guard)
        self.guardian = None if guard is None else guard.guardian
        self._reads_more = guard is not None and guard.reads_more

    def __repr__(self) -> str:
        about = self.export.about
        guarded = f"under {about['rules']} (guard {about['guard']})" if about["rules"] else "without rules"
        return f"<Policy for {about['env']} {guarded}>"

    def act(
        self,
        observation: Observation,
        *,
        state: State = None,
        context: ContextLike = None,
        sample: bool = False,
    ) -> Verdict:
        """The verdict on what the policy proposes for one observation: execute its `action`.

        `sample` draws from the policy instead of taking its mode. Raises `StopEpisode` where nothing may be
        executed.
        """
        observation = _as_arrays(observation, self.observation_space)
        if self.guardian is None:
            proposed = self.propose(observation, sample=sample)
            return Verdict(proposed, proposed, Status.ALLOWED, suggestion=proposed)
        state = self._state(observation, state)
        context = self._context(context)
        safe_set = self.drawn_from(lambda asked: asked.safe_set(state, context=context))
        proposed = self.propose(observation, safe_set, sample=sample)
        return self.guardian.certify(state, proposed, context=context)

    @property
    def resamples(self) -> bool:
        """Whether proposals are drawn from the safe set (execution = resample)."""
        return self.network.config.execution == "resample" and self.network.spec is not None

    @cached_property
    def _asked(self) -> "list[Guardian]":
        """Which rules may have been drawn from in training: all of them, or those with a finite description."""
        candidates = [] if self.guardian is None else [self.guardian, self.guardian.described()]
        return [guardian for guardian in candidates if guardian is not None]

    def drawn_from(self, safe_set: Callable[[Guardian], SafeSet | None]) -> SafeSet | None:
        """The safe set to draw a proposal from, as training did; None where that is not needed or not known.

        `safe_set` is that of a guardian's rules in the current state.
        """
        for guardian in self._asked if self.resamples else ():
            try:
                found = safe_set(guardian)
            except GxError:  # the rules raised: `certify` will use the fallback for any proposal
                continue
            if found is not None and _alike(found.spec, self.network.spec):
                return found
        return None

    def propose(
        self, observation: Observation, safe_set: SafeSet | None = None, *, sample: bool = False
    ) -> Array:
        """The actor's proposal for one observation, not yet certified."""
        return propose(self.export, self.network, observation, safe_set, sample=sample)

    def _state(self, observation: Observation, state: State) -> State:
        if state is None and self._reads_more:
            raise GxError(
                f"the rules {self.export.about['rules']} read more than the observation; give act(..., state=...) "
                "what their state function returns"
            )
        return observation if state is None else state

    def _context(self, context: ContextLike) -> Context:
        assert self.guardian is not None
        given = vars(context) if isinstance(context, Context) else dict(context or {})
        missing = sorted(name for name in self.guardian.needs if given.get(name) is None)
        if missing:
            raise GxError(
                f"the rules {self.export.about['rules']} need {' and '.join(missing)}; give act(..., "
                f"context={{{', '.join(f'{name!r}: ...' for name in missing)}}})"
            )
        return Context(**given)


def load_policy(
    path: str | os.PathLike[str], *, seed: int = 0, rules: Rule | Iterable[Rule] | None = None, **options: Any
) -> Policy:
    """The policy of a folder made by `rlpd-gx export`, or of a run; refused if its rules have changed since.

    The checksums are verified first; then the module that policy.json names is imported, unless its `rules` are given,
    with those of its options that it has: state, fallback, near_miss, initial_action, parameters, unsafe_event.
    `seed` is for sampled actions.
    """
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise GxError(f"load_policy has no option {unknown[0]!r}; beside rules it takes {', '.join(OPTIONS)}")
    if options and rules is None:
        raise GxError(f"load_policy takes {', '.join(options)} only together with rules")
    policy = Policy(Export.find(path), seed, rules, options)
    policy.export.refuse_other_execution()
    return policy


def propose(
    export: Export,
    network: PolicyNetwork,
    observation: Observation,
    safe_set: SafeSet | None = None,
    *,
    sample: bool = False,
) -> Array:
    """A network's proposal for one observation; `safe_set` matters only for execution = resample."""
    code = None if safe_set is None else np.asarray(safe_set.encode())[None]
    seen = _batch(observation, export.observation_space, "the observation")
    return ActionView(export.action_space).executed(network.act(seen, code, explore=sample)[0])


def _alike(spec: Spec, other: Spec | None) -> bool:
    return other is not None and spec["kind"] == other["kind"] and code_width(spec) == code_width(other)


def _batch(observation: Observation, space: gym.Space, what: str) -> Tree:
    """One observation as [1, ...], checked against the shape of the space."""
    if isinstance(space, gym.spaces.Dict):
        observation = learner_view(observation)
        if not isinstance(observation, Mapping) or set(observation) != set(space.spaces):
            raise GxError(f"{what} must be a dict with {', '.join(space.spaces)}")
        return {
            name: _batch(observation[name], part, f"{what}[{name!r}]") for name, part in space.spaces.items()
        }
    array: Array = np.asarray(observation)
    if array.shape != space.shape:
        raise GxError(f"{what} has shape {array.shape}; the policy was trained on {space.shape}")
    if not isinstance(space, gym.spaces.Box):
        with np.errstate(invalid="ignore"):
            whole = array.astype(space.dtype) if array.dtype.kind in "biuf" else None
        if whole is None or not (whole == array).all() or not space.contains(whole):
            raise GxError(f"{what} is {_shown(observation)}, but the policy was trained on {_values(space)}")
    return array[None]


def _values(space: gym.Space) -> str:
    """What an observation with a finite number of values may be."""
    if isinstance(space, gym.spaces.Discrete):
        return f"whole numbers from {space.start} to {space.start + space.n - 1}"
    return f"values of {space}"


def _as_arrays(observation: Observation, space: gym.Space) -> Tree:
    """The observation as the environment gives it to the rules: arrays of the dtype of the space."""
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {"": space}

    def seen(tree: Tree, path: str) -> Tree:
        if path in parts:
            return _numbers(tree, parts[path], f"the observation{[path] if path else ''}")
        start = f"{path}/" if path else ""
        if isinstance(tree, Mapping):
            return {key: seen(part, f"{start}{key}") for key, part in tree.items()}
        return (
            tuple(seen(part, f"{start}{i}") for i, part in enumerate(tree)) if type(tree) is tuple else tree
        )

    return seen(observation, "")


def _numbers(given: Tree, space: gym.Space, what: str) -> Array:
    """One array of an observation, or one number, which rules may look up in a dict.

    Whole numbers are brought to the type of the space, since sums of bytes would overflow.

    Floats that are given as arrays keep their precision, as rules see them in the environment.
    """
    try:
        array = np.asarray(to_numpy(given))
    except (TypeError, ValueError):  # such as lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise GxError(f"{what} is not an array of numbers; the policy was trained on shape {space.shape}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise GxError(f"{what} holds NaN; nothing can be decided from that: mend where it comes from")
    assert space.dtype is not None
    as_given = array.dtype == space.dtype or (array.dtype.kind == space.dtype.kind == "f")
    if as_given and not isinstance(given, list | tuple):
        return array if array.ndim else array[()]
    with np.errstate(over="ignore", invalid="ignore"):
        typed = array.astype(space.dtype)
    if space.dtype.kind != "f" and not np.array_equal(typed, array):
        raise GxError(f"{what} is {_shown(given)}, but the policy was trained on {_values(space)}")
    return typed if typed.ndim else typed[()]


def _shown(value: Tree) -> str:
    return " ".join(str(value).split())[:80]


def _digests(about: JsonMapping, tensors: bytes) -> dict[str, str]:
    """sha256 of both files; that of policy.json leaves out these digests."""
    text = json.dumps(about, sort_keys=True).encode()
    return {TENSORS: hashlib.sha256(tensors).hexdigest(), ABOUT: hashlib.sha256(text).hexdigest()}


def _refuse_changes(export: Export, guard: PolicyGuard) -> None:
    made, here = export.about["python"], platform.python_version()
    # fingerprints read compiled code, which differs between versions of Python
    same = made.split(".")[:2] == here.split(".")[:2]
    guard.identity.refuse_changes(
        export.about["fingerprints"],
        export.source,
        export.about["rules"],
        "the export" + ("" if same else f" (exported with Python {made}, this is {here})"),
        "restore that module as it was, or train and export again under the new rules",
    )
