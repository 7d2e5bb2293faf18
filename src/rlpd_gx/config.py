"""Everything that can be chosen about a run, and presets. The defaults are the preset `rlpd-gx`."""

from dataclasses import dataclass, field
from typing import Any, Literal

from rlpd_gx.errors import GxError

Settings = dict[str, Any]  # by name
CALIBRATED_WEIGHT = 5.0  # of Cal-QL's penalty, as published


@dataclass(frozen=True)
class RunConfig:
    """The task, the guard, and the length of the run."""

    env: str = ""
    """Gymnasium environment such as Hopper-v5, Atari game such as Atari/Seaquest-ram, or module:name of your own."""
    env_kwargs: Settings = field(default_factory=dict)
    """Keyword arguments of the environment as JSON, such as '{"max_episode_steps": 200}'."""
    rules: str = ""
    """module:name of a rule, or of a list of rules that must all hold."""
    guard: str = "guardian"
    """How the rules are used, such as shield, penalty=2 or guardian+penalty; module:name is a guard of your own."""
    rules_state: str = ""
    """module:function (env, observation, info) -> state that the rules read. Default: `state` in the rules' module."""
    offline: str = ""
    """Offline dataset: a file or folder. Every Atari game has `planner`, and some have `recorded` or `scripted`."""
    offline_where: tuple[str, ...] = ()
    """Keep only matching offline steps, such as "behaviour_iteration <= 20"."""
    offline_state: str = ""
    """module:function from stored observations [k, ...] to the state that the rules read."""
    offline_safe_sets: Literal["error", "assume-all", "drop"] = "error"
    """Offline rows with unknown safe sets: stop with an error, assume all actions are allowed, or drop the rows."""
    steps: int = 20_000
    """Online environment steps, summed over all environments."""
    num_envs: int = 1
    """Number of parallel environments."""
    warm_start_updates: int = 0
    """Updates on offline data before the first environment step."""
    evaluate_every: int = 2_500
    """Steps between evaluations; 0 evaluates only at the end."""
    evaluation_episodes: int = 5
    """Episodes per evaluation; the final evaluation has twice as many."""
    checkpoint_every: int = 2_500
    """Steps between checkpoints."""
    log_every: int = 250
    """Steps between rows of metrics."""
    seed: int = 0
    """Random seed."""
    device: str = "auto"
    """cpu, cuda, mps, or auto for the best available."""

    def __post_init__(self) -> None:
        _at_least(1, self, "num_envs", "evaluation_episodes", "checkpoint_every", "log_every")
        _at_least(0, self, "steps", "warm_start_updates", "evaluate_every", "seed")


@dataclass(frozen=True)
class DataConfig:
    """Replay: how many transitions, from which source, how far apart in time."""

    batch_size: int = 256
    """Transitions per minibatch."""
    utd: float = 20
    """Updates per environment step (UTD); 0.5 is one update every two steps."""
    learning_starts: int = 1_000
    """Uniformly random steps before the first update, where minibatches hold online rows only."""
    buffer_size: int = 1_000_000
    """Capacity of the online replay buffer."""
    gamma: float = 0.99
    """Discount factor."""
    online_ratio: tuple[float, ...] = (0.8,)
    """Online fraction of each minibatch; two values, such as 0.05,0.5, are its start and end (DSS)."""
    online_schedule: Literal["sigmoid", "abrupt"] = "sigmoid"
    """Schedule between the two values of online_ratio: DSS, or one switch at half the run."""
    sampler: Literal["uniform", "stride", "fixed", "span", "span-cut", "tree-backup"] = "span"
    """Independent transitions; windows with a stride (DTS) or contiguous; multi-step targets (DTS as span) uncorrected,
    truncated where the policy is unlikely to take the action, or corrected by tree-backup (discrete actions)."""
    interval: tuple[int, ...] = (3,)
    """Delta of DTS in steps: stride of a window, or length of a span; two values are its start and end."""

    def __post_init__(self) -> None:
        _at_least(1, self, "batch_size", "buffer_size")
        _at_least(0, self, "learning_starts")
        _one_or_two(self, "online_ratio", "interval")
        whole = self.utd if self.utd >= 1 else 1 / self.utd if self.utd > 0 else 0
        if whole < 1 or abs(whole - round(whole)) > 1e-9:
            raise GxError(f"utd must be a whole number such as 4, or 1/n such as 0.25, got {self.utd}")
        if not 0 < self.gamma <= 1:
            raise GxError(f"gamma must be in (0, 1], got {self.gamma}")
        if not all(0 <= ratio <= 1 for ratio in self.online_ratio):
            raise GxError(f"online_ratio must be in [0, 1], got {self.online_ratio}")
        if min(self.interval) < 1:
            raise GxError(f"interval must be 1 or more, got {self.interval}")

    @property
    def updates(self) -> int:
        """Critic updates in one block."""
        return max(round(self.utd), 1)

    @property
    def update_every(self) -> int:
        """Environment steps between blocks of updates."""
        return max(round(1 / self.utd), 1)


@dataclass(frozen=True)
class LearnerConfig:
    """SAC with a Q-ensemble and a guarded backup."""

    ensemble_size: int = 10
    """Number of critics."""
    target_subset: int = 2
    """Critics in a random subset whose minimum is the target; 0 uses all."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Width of each hidden layer of actor and critics."""
    layer_norm: bool = True
    """Layer normalisation in the critics (without scale and shift)."""
    learning_rate: float = 3e-4
    """Learning rate of actor, critics and temperature (Adam)."""
    tau: float = 0.005
    """Target-network update rate."""
    policy_tau: float = 0.003
    """Update rate of the policy that is evaluated and exported, a running average of the one that learns and explores;
    1 uses that one itself."""
    backup: Literal["renormalise", "project", "none"] = "project"
    """Next actions in the target: policy renormalised over the safe set, projected onto it, or unguarded."""
    actor: Literal["auto", "raw", "masked", "projected", "clone"] = "auto"
    """auto: no actor network for discrete actions (the policy is the softmax of the critics), projected or, without a
    guarded backup, raw for continuous ones and for joint actions that are too many to list. Else which actions the
    actor's loss counts: all, allowed, as executed after projection; or behaviour cloning without critics."""
    execution: Literal["project", "resample"] = "project"
    """Propose from the raw policy and let the Guardian project, or sample from the renormalised policy."""
    actor_value: Literal["mean", "min"] = "mean"
    """Value that the actor maximises: mean of the ensemble (RLPD) or its minimum (the paper)."""
    backup_entropy: Literal["add", "none", "subtract"] = "none"
    """Entropy term of the target; the paper prints it subtracted."""
    temperature: float = 0.1
    """Initial temperature (alpha)."""
    target_entropy: Literal["auto", "fixed"] | float = "auto"
    """Target entropy as a fraction of log |A_safe(s)| (discrete; auto: 0.3) or per action dimension (continuous; auto:
    -0.5); `fixed` keeps alpha constant."""
    clone_weight: tuple[float, ...] = (0.03, 0.15)
    """Weight of behaviour cloning on offline rows, in units of mean |Q|, and the fraction of the run at which it
    reaches 0 (default 1; at 2, half of it is left at the end). Where it lasts and actions are continuous, give
    target_entropy fixed: a clone has less entropy than the target, and alpha would grow until noise wins."""
    untested: Literal["allowed", "forbidden"] = "allowed"
    """How backup and actor treat actions that the rules were not asked about."""
    ood_penalty: Literal["calibrated"] | float = 0.0
    """Weight of a conservative penalty on Q-values of forbidden and unseen actions (CQL); `calibrated`: weight 5, on
    values above the return of the offline data only (Cal-QL)."""
    support: float = 0.0
    """Exclude actions from policy and backup whose probability under a clone of the offline data is below this fraction
    of the likeliest one's (discrete BCQ: 0.3); 0 excludes none."""
    compile: bool = False
    """Compile updates with torch.compile: a minute at the start, then faster updates; needs a C++ compiler."""
    normalise: bool = True
    """Normalise observations by statistics taken just before the first update; from images, the mean image is always
    subtracted."""

    def __post_init__(self) -> None:
        if not 0 <= self.target_subset <= self.ensemble_size:
            raise GxError(
                f"target_subset must be from 0 (all) to ensemble_size {self.ensemble_size}, got {self.target_subset}"
            )
        for name in ("ensemble_size", "learning_rate", "tau", "temperature"):
            if not getattr(self, name) > 0:
                raise GxError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 < self.policy_tau <= 1:
            raise GxError(f"policy_tau must be in (0, 1], got {self.policy_tau}")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise GxError(f"hidden_sizes must be one width or more, got {self.hidden_sizes}")
        if not 0 <= self.support <= 1:
            raise GxError(f"support must be in [0, 1], got {self.support}")
        if self.support and self.actor != "auto":
            raise GxError(
                f"support restricts the policy without an actor network, but actor is {self.actor}; give actor=auto"
            )
        _one_or_two(self, "clone_weight")
        if len(self.clone_weight) == 2 and not self.clone_weight[1] > 0:
            raise GxError(
                f"clone_weight must reach 0 at a positive fraction of the run, got {self.clone_weight[1]}"
            )

    @property
    def ood_weight(self) -> float:
        """Weight of the conservative penalty."""
        return CALIBRATED_WEIGHT if self.ood_penalty == "calibrated" else float(self.ood_penalty)

    @property
    def entropy_sign(self) -> float:
        """Factor of the target's entropy term."""
        return {"add": 1.0, "none": 0.0, "subtract": -1.0}[self.backup_entropy]

    def clone_weight_at(self, progress: float) -> float:
        """Weight of behaviour cloning after this fraction of the run."""
        until = self.clone_weight[1] if len(self.clone_weight) == 2 else 1.0
        return self.clone_weight[0] * max(1 - progress / until, 0.0)


@dataclass(frozen=True)
class Config:
    """A run. Field names are unique across the sections, so a flag needs no section."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    preset: str = "rlpd-gx"


_RLPD: Settings = {  # as published: symmetric sampling, minimum of 2 of 10 critics, the actor on the mean
    "guard": "none", "online_ratio": (0.5,), "sampler": "uniform", "backup_entropy": "add", "temperature": 1.0,
    "normalise": False, "clone_weight": (0.0,), "policy_tau": 1.0,
}  # fmt: skip

_PAPER: Settings = {  # as printed: minimum of all critics for target and actor, the entropy subtracted
    "backup": "renormalise", "actor": "raw", "target_subset": 0, "actor_value": "min", "backup_entropy": "subtract",
    "temperature": 1.0, "online_ratio": (0.05, 0.5), "sampler": "stride", "interval": (1, 8), "normalise": False,
    "clone_weight": (0.0,), "policy_tau": 1.0,
}  # fmt: skip

_FULL: Settings = {  # every component of the paper on our guarded learner, DTS as span: the baseline of the ablations
    "online_ratio": (0.05, 0.5), "sampler": "span", "interval": (1, 8), "normalise": False, "clone_weight": (0.0,),
    "policy_tau": 1.0,
}  # fmt: skip

_Q: Settings = {  # Q-learning as the related hybrids have it: half of each minibatch offline, no entropy, near greedy
    "guard": "none", "online_ratio": (0.5,), "sampler": "uniform", "ensemble_size": 2, "backup_entropy": "none",
    "temperature": 0.01, "target_entropy": "fixed", "clone_weight": (0.0,), "policy_tau": 1.0,
}  # fmt: skip

PRESETS: dict[str, Settings] = {
    "rlpd-gx": {},
    "paper": _PAPER,
    "rlpd": _RLPD,
    "sac": _RLPD | {"online_ratio": (1.0,), "ensemble_size": 2, "utd": 1, "layer_norm": False},
    "full": _FULL,
    "no-guardian": _FULL | {"guard": "none"},
    "no-guarded-backup": _FULL | {"backup": "none"},
    "no-dts": _FULL | {"sampler": "uniform"},
    "no-dss": _FULL | {"online_ratio": (0.5,)},
    "clone": {
        "actor": "clone",
        "backup": "none",
        "online_ratio": (0.0,),
        "normalise": False,
        "policy_tau": 1.0,
    },
    "hy-q": _Q | {"ensemble_size": 1, "target_subset": 0},
    "cql": _Q | {"online_ratio": (0.0,), "ood_penalty": 5.0},
    "cal-ql": _Q | {"warm_start_updates": 10_000, "ood_penalty": "calibrated"},
    "bcq": _Q | {"online_ratio": (0.0,), "support": 0.3},
    "wsrl": {
        "warm_start_updates": 10_000,
        "online_ratio": (1.0,),
        "sampler": "uniform",
        "clone_weight": (0.0,),
        "policy_tau": 1.0,
    },
}


def _at_least(least: int, config: object, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:
            raise GxError(f"{name} must be {least} or more, got {getattr(config, name)}")


def _one_or_two(config: object, *names: str) -> None:
    for name in names:
        if len(getattr(config, name)) not in (1, 2):
            raise GxError(f"{name} takes one value, or two separated by a comma, got {getattr(config, name)}")
