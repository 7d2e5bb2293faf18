"""What can be chosen about the Learner."""

from dataclasses import dataclass
from typing import Literal

from rlpd_gx.errors import GxError


@dataclass(frozen=True)
class LearnerConfig:
    """SAC with a Q-ensemble and a guarded backup. The defaults are RLPD's, with the guard in the backup."""

    ensemble_size: int = 10
    """Critics."""
    target_subset: int = 2
    """Critics whose least value makes the target, drawn anew for each update; 0 takes all of them."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Width of each hidden layer, of actor and critics."""
    layer_norm: bool = True
    """Normalise hidden layers of the critics (without scale and shift)."""
    learning_rate: float = 3e-4
    """Of actor, critics and temperature (Adam)."""
    target_rate: float = 0.005
    """How fast target critics follow."""
    actor_updates: int = 1
    """Updates of actor and temperature in a block of critic updates, spread evenly."""
    max_gradient_norm: float = 0.0
    """Clip the norm of the critics' and the actor's gradient; 0 leaves it."""
    backup: Literal["renormalise", "project", "none"] = "renormalise"
    """Next actions in the target: the policy renormalised over the safe set, projected onto it, or unguarded."""
    actor: Literal["raw", "masked", "projected"] = "masked"
    """Which actions the actor's loss counts: all, allowed ones, or those that are really executed."""
    execution: Literal["project", "resample"] = "project"
    """Propose from the raw policy and let the Guardian project, or draw from the renormalised policy."""
    actor_value: Literal["mean", "min"] = "mean"
    """What the actor climbs: the mean of the ensemble (RLPD) or its least member (the paper)."""
    backup_entropy: Literal["add", "none", "subtract"] = "add"
    """The entropy term of the target; the paper prints it subtracted."""
    projected_entropy: Literal["proposal", "none"] = "proposal"
    """What a projected next action, which has no density, counts as its entropy (continuous actions)."""
    target_samples: int = 4
    """Next actions drawn for one renormalised target (continuous actions)."""
    initial_temperature: float = 1.0
    """alpha at the start."""
    fixed_temperature: bool = False
    """Keep alpha as it starts."""
    objective: Literal["value", "clone"] = "value"
    """What the actor learns: to gain value, or only to do what the data does (behaviour cloning)."""
    clone_weight: float = 0.0
    """Weight of behaviour cloning on the offline rows, in units of the mean |Q|; it fades as the run goes on."""
    clone_until: float = 1.0
    """Share of the run after which that weight is 0; above 1 it never is: at 2, half of it is left at the end."""
    entropy_fraction: float = 0.3
    """Target entropy as a share of log |A_safe(s)| (discrete actions)."""
    entropy_per_dimension: float = -0.5
    """Target entropy for each action component (continuous actions)."""
    untested: Literal["allowed", "forbidden"] = "allowed"
    """How backup and actor count actions that the rules were never asked about."""
    distance_penalty: float = 1.0
    """Weight of the squared distance to the safe set in a projected or masked actor's loss (continuous actions)."""
    ood_penalty: float = 0.0
    """Weight of a conservative term that holds down the values of forbidden and unseen actions."""
    compile: bool = False
    """Compile the critics (torch.compile): a minute at the start, then faster updates; needs a C++ compiler."""
    normalise: bool = False
    """Centre and scale observations (not images) by rows drawn just before the first update, and stay with that."""
    observed: tuple[int, ...] = ()
    """Entries of an observation's last axis that the networks see, such as RAM addresses (rules see all); none: all."""
    changes: bool = False
    """Of a stack of frames (not images), the networks see the newest and what changed from each to the next."""
    pixel_features: int = 256
    """What the pixel encoder hands to actor and critics."""
    random_shift: int = 4
    """Pixels by which images are shifted at random in updates."""

    def __post_init__(self) -> None:
        if not 0 <= self.target_subset <= self.ensemble_size:
            raise GxError(
                f"target_subset is {self.target_subset}; it must lie between 0 (all) and ensemble_size "
                f"{self.ensemble_size}"
            )
        for name in (
            "ensemble_size",
            "actor_updates",
            "learning_rate",
            "target_rate",
            "initial_temperature",
            "target_samples",
            "clone_until",
        ):
            if not getattr(self, name) > 0:
                raise GxError(f"{name} must be positive, got {getattr(self, name)}")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise GxError(f"hidden_sizes must be one width or more, got {self.hidden_sizes}")

    @property
    def entropy_sign(self) -> float:
        """What the entropy term of the target is multiplied with."""
        return {"add": 1.0, "none": 0.0, "subtract": -1.0}[self.backup_entropy]
