"""What a guard is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:  # the help of `rlpd-gx train` reads guards, and has to be quick
    import gymnasium as gym

    from rlpd_gx.learner import QLearner
    from rlpd_gx.replay.hybrid import Hybrid
    from rlpd_gx.replay.offline import OfflineDataset
    from rlpd_gx.types import Transition


@dataclass(frozen=True)
class Guard:
    """One way of using rules. Subclass it where settings are not enough; the methods are what it may change.

    `settings` define the guard (backup, actor, execution, data); a person who sets another value explicitly gets that
    one. A guard with state keeps it in an object that `begin` makes for each run.
    """

    name: str
    mode: Literal["enforce", "monitor"]
    """Whether the rules correct forbidden actions, or only count them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    learns: bool = True
    """Whether the Learner is updated."""
    value: float | None = None
    """The number of `--guard name=number`; None for guards that take none."""

    @property
    def corrects(self) -> bool:
        """Whether another action than the proposed one may be executed."""
        return self.mode == "enforce"

    @property
    def exportable(self) -> bool:
        """Whether rules and `mode` alone decide what is executed: all that an exported policy has of a guard.

        Not where `environment` is overridden, unless the guard overrides this too.
        """
        return type(self).environment is Guard.environment

    def begin(self, seed: int, *, watched: bool) -> Self:
        """The guard of one run; `watched`: its task reports unsafe events."""
        return self

    def environment(self, env: "gym.Env", rules: Any, **options: Any) -> "gym.Env":
        """Execution: the environment as the Learner acts in it; `options` are those of `GuardedEnv`."""
        from rlpd_gx.guardian import GuardedEnv

        return GuardedEnv(env, rules, mode=self.mode, **options)

    def learner(self, learner: "QLearner", action_space: "gym.Space") -> "QLearner":
        """Proposals and losses: the Learner as this guard uses it."""
        return learner

    def offline(self, data: "OfflineDataset") -> "OfflineDataset":
        """Data: the offline rows as the Learner sees them."""
        return data

    def stored(self, transition: "Transition") -> "Transition":
        """Data: what the replay buffer keeps of a step."""
        return transition

    def learn(self, data: "Hybrid") -> dict[str, float]:
        """What the guard itself learns, after each block of updates; returns metrics."""
        return {}

    def state(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit: nested dicts of tensors, arrays and JSON values."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
