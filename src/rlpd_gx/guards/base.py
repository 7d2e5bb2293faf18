"""What a guard is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # the help of `rlpd-gx train` reads guards, and has to be quick
    import gymnasium as gym

    from rlpd_gx.types import Transition


@dataclass(frozen=True)
class Guard:
    """One way of using rules. Subclass it where settings are not enough.

    `learner` holds settings of the Learner that define the guard (backup and losses); a person who sets another value
    explicitly gets that one.
    """

    name: str
    mode: Literal["enforce", "monitor"]
    """Whether forbidden actions are corrected, or only counted."""
    learner: Mapping[str, Any] = field(default_factory=dict)

    def environment(self, env: "gym.Env", rules: Any, **options: Any) -> "gym.Env":
        """Execution: the environment as the Learner acts in it; `options` are those of `GuardedEnv`."""
        from rlpd_gx.guardian import GuardedEnv

        return GuardedEnv(env, rules, mode=self.mode, **options)

    def stored(self, transition: "Transition") -> "Transition":
        """Data: what the replay buffer keeps of a step."""
        return transition
