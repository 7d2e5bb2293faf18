"""Exported policies: actor and guard in one folder that needs neither the run nor its environment."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
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
from rlpd_gx.envs.making import make
from rlpd_gx.errors import GxError
from rlpd_gx.files import whole_folder
from rlpd_gx.guardian import Guardian
from rlpd_gx.guardian.named import named_rules
from rlpd_gx.guardian.reading import batch_of_one
from rlpd_gx.learner.policy import PolicyNetwork, restored
from rlpd_gx.loop.checkpoint import Checkpoints
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.loop.task import Task
from rlpd_gx.rules import fingerprint
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.types import Array, Context, Observation, Status, Verdict

FORMAT = 1
TENSORS, ABOUT = "policy.safetensors", "policy.json"
ASKED = ("env", "env_kwargs", "rules", "rules_state", "guard")  # settings of the run that are exported
GUARD_OPTIONS = ("fallback", "initial_action", "near_miss", "parameters", "state")


@dataclass(frozen=True, eq=False)
class Export:
    """A policy and its guard as plain data."""

    about: dict[str, Any]
    """The content of policy.json: spaces, settings, rules with fingerprints, and the training run."""
    tensors: Mapping[str, Tensor]
    """Actor and encoder: the `state_dict()` of the policy network."""
    source: str
    """The folder it was read from, for error messages."""

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
        folder, config = RunFolder.open(path)
        loaded = Checkpoints(folder.checkpoints).load()
        task = Task(config)
        example = task.example
        guardian = example.guardian
        if loaded.state["rules_fingerprint"] != (None if guardian is None else guardian.fingerprint):
            raise GxError(
                f"{path}: the rules {config.run.rules} have changed since the checkpoint was made; restore them, "
                "or train again under the new ones"
            )
        asked = settings.flat(config)
        about: dict[str, Any] = {
            "format": FORMAT,
            "rlpd_gx": __version__,
            "python": platform.python_version(),
            **{name: asked[name] for name in ASKED},
            "observation_space": spaces.to_json(example.observation_space),
            "action_space": spaces.to_json(example.action_space),
            "learner": asdict(config.learner),
            "embedding": None if example.embedding is None else example.embedding.tolist(),
            "safe_set_spec": example.spec,
            "trained": {"command": folder.command, "seed": config.run.seed, "step": loaded.step},
        }
        export = cls(about, loaded.state["learner"]["policy"], str(path))
        about["fingerprints"] = export.fingerprints()
        return export

    @classmethod
    def read(cls, path: Path) -> "Export":
        """An exported folder, checked to be what was written."""
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
        if folder.exists():
            raise GxError(f"{folder}: exists already; choose another --out")
        tensors = tensors_to_bytes({name: t.cpu().contiguous() for name, t in self.tensors.items()})
        about = json.dumps(self.about | {"sha256": _digests(self.about, tensors)}, indent=2)
        with whole_folder(folder) as new:
            (new / TENSORS).write_bytes(tensors)
            (new / ABOUT).write_text(f"{about}\n")

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
        asked = {name: self.about[name] for name in ASKED}
        asked["env_kwargs"] = asked["env_kwargs"] | env_kwargs
        return Task(settings.with_values(Config(), asked, f"{self.source}/{ABOUT}"))

    def network(self, seed: int = 0) -> PolicyNetwork:
        """The actor on the CPU; `seed` is that of sampled actions."""
        config = settings.with_values(Config(), self.about["learner"], f"{self.source}/{ABOUT}").learner
        spec = self.about["safe_set_spec"]
        return restored(self.tensors, config, self.observation_space, self.action_space, spec, seed)

    @cached_property
    def guard(self) -> tuple[Guardian, dict[str, Any]] | None:
        """The Guardian of the rules as they are now, and the options of their module; None without rules.

        It is built once: rules made for an environment, such as look-ahead, each bring an emulator.
        """
        if not (rules := self.about["rules"]):
            return None

        def env() -> gym.Env:  # called only for rules that are made for an environment
            return make(self.about["env"], **self.about["env_kwargs"])

        try:
            rule, options = named_rules(rules, self.about["rules_state"], env)
        except GxError as error:
            raise GxError(f"{self.source}: the rules of this policy cannot be used: {error}") from None
        guardian = Guardian(
            self.action_space,
            rule,
            embedding=self.about["embedding"],
            mode=guards.find(self.about["guard"]).mode,
            **{name: options[name] for name in ("fallback", "near_miss") if name in options},
        )
        return guardian, options

    def fingerprints(self) -> dict[str, str]:
        """Of the rules and of each option of their module: they differ if the guard has changed."""
        if self.guard is None:
            return {}
        guardian, options = self.guard
        return {"rules": guardian.fingerprint} | {n: fingerprint(options.get(n)) for n in GUARD_OPTIONS}


class Policy:
    """Proposes with the actor and certifies with the rules of its training: same state and context, same verdict.

    Rules that read more than the observation need `state`.
    """

    def __init__(self, export: Export, seed: int = 0) -> None:
        self.export = export
        self.observation_space, self.action_space = export.observation_space, export.action_space
        self.network = export.network(seed)
        _refuse_changes(export)
        self.guardian = None if export.guard is None else export.guard[0]
        self._reads_more = export.guard is not None and export.guard[1]["state"] is not None

    def act(
        self,
        observation: Observation,
        *,
        state: Any = None,
        context: Context | Mapping[str, Any] | None = None,
        sample: bool = False,
    ) -> Verdict:
        """The verdict on what the policy proposes for one observation: execute its `action`.

        `sample` draws from the policy instead of taking its mode. Raises `StopEpisode` where nothing may be
        executed.
        """
        if self.guardian is None:
            proposed = self.propose(observation, sample=sample)
            return Verdict(proposed, proposed, Status.ALLOWED, suggestion=proposed)
        state = self._state(observation, state)
        context = self._context(context)
        safe_set = _safe_set(self.guardian, state, context) if self.resamples else None
        proposed = self.propose(observation, safe_set, sample=sample)
        return self.guardian.certify(state, proposed, context=context)

    @property
    def resamples(self) -> bool:
        """Whether proposals are drawn from the safe set (execution = resample)."""
        return self.network.config.execution == "resample" and self.network.spec is not None

    def propose(
        self, observation: Observation, safe_set: SafeSet | None = None, *, sample: bool = False
    ) -> Array:
        """The actor's proposal for one observation, not yet certified."""
        return propose(self.network, self.observation_space, observation, safe_set, sample=sample)

    def _state(self, observation: Observation, state: Any) -> Any:
        if state is None and self._reads_more:
            raise GxError(
                f"the rules {self.export.about['rules']} read more than the observation; give act(..., state=...) "
                "what their state function returns"
            )
        return observation if state is None else state

    def _context(self, context: Context | Mapping[str, Any] | None) -> Context:
        assert self.guardian is not None
        given = vars(context) if isinstance(context, Context) else dict(context or {})
        missing = sorted(name for name in self.guardian.needs if given.get(name) is None)
        if missing:
            raise GxError(
                f"the rules {self.export.about['rules']} need {' and '.join(missing)}; give act(..., "
                f"context={{{', '.join(f'{name!r}: ...' for name in missing)}}})"
            )
        return Context(**given)


def load_policy(path: str | os.PathLike[str], *, seed: int = 0) -> Policy:
    """The policy of a folder made by `rlpd-gx export`, or of a run; refused if its rules have changed since.

    `seed` is that of sampled actions.
    """
    return Policy(Export.find(path), seed)


def propose(
    network: PolicyNetwork,
    space: gym.Space,
    observation: Observation,
    safe_set: SafeSet | None = None,
    *,
    sample: bool = False,
) -> Array:
    """An actor's proposal for one observation of a space; `safe_set` matters only for execution = resample."""
    code = None if safe_set is None else np.asarray(safe_set.encode())[None]
    return network.act(_batch(observation, space, "the observation"), code, explore=sample)[0]


def _safe_set(guardian: Guardian, state: Any, context: Context) -> SafeSet | None:
    fields = {name: None if v is None else batch_of_one(v) for name, v in vars(context).items()}
    try:
        safe_sets = guardian.safe_sets(batch_of_one(state), context=fields)
    except GxError:  # the rules raised: `certify` will use the fallback for any proposal
        return None
    return None if safe_sets is None else safe_sets[0]


def _batch(observation: Observation, space: gym.Space, what: str) -> Any:
    """One observation as [1, ...], checked against the shape of the space."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(observation, Mapping) or set(observation) != set(space.spaces):
            raise GxError(f"{what} must be a dict with {', '.join(space.spaces)}")
        return {
            name: _batch(observation[name], part, f"{what}[{name!r}]") for name, part in space.spaces.items()
        }
    array: Array = np.asarray(observation)
    if array.shape != space.shape:
        raise GxError(f"{what} has shape {array.shape}; the policy was trained on {space.shape}")
    return array[None]


def _digests(about: Mapping[str, Any], tensors: bytes) -> dict[str, str]:
    """sha256 of both files; that of policy.json leaves out these digests."""
    text = json.dumps(about, sort_keys=True).encode()
    return {TENSORS: hashlib.sha256(tensors).hexdigest(), ABOUT: hashlib.sha256(text).hexdigest()}


def _refuse_changes(export: Export) -> None:
    saved, now = export.about["fingerprints"], export.fingerprints()
    changed = [name for name in now if now[name] != saved.get(name)]
    if not changed:
        return
    made, here = export.about["python"], platform.python_version()
    # fingerprints read compiled code, which differs between versions of Python
    also = (
        ""
        if made.split(".")[:2] == here.split(".")[:2]
        else f" (exported with Python {made}, this is {here})"
    )
    raise GxError(
        f"{export.source}: the {' and '.join(changed)} of {export.about['rules']} changed since the export{also}; "
        "restore that module as it was, or train and export again under the new rules"
    )
