"""What the experiments share: scales, variants, the runs of Atari games."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rlpd_gx.compilers import has_cpp_compiler
from rlpd_gx.config import Settings
from rlpd_gx.errors import GxError
from rlpd_gx.experiments.evidence import Rows
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.reported import GAMES
from rlpd_gx.report.chapter import ClaimVerdict, Figure, Table
from rlpd_gx.trees import Json

RAM_RULES, LOOK_AHEAD = "rlpd_gx.envs.atari:RamRules", "rlpd_gx.envs.atari:Lookahead"
# Shared by every variant: only what the experiment compares differs. Chosen on Assault, Gopher and DemonAttack with
# seed 11 (results/learner-tried.jsonl), and frozen before the first reported run.
ATARI: Settings = {
    "env_kwargs": {"clip_rewards": True, "life_loss_ends": True},
    "rules": RAM_RULES,
    "ensemble_size": 3,
    "hidden_sizes": (128, 128),
    "batch_size": 128,
    "utd": 0.5,
    "evaluate_every": 10_000,
    "evaluation_episodes": 3,
    "checkpoint_every": 10_000,
    "log_every": 1_000,
}


@dataclass(frozen=True)
class Scale:
    """How large the runs of an experiment are."""

    name: str
    seeds: int
    observation: str
    settings: Settings = field(default_factory=dict)
    """Over those of the experiment."""
    env_kwargs: Settings = field(default_factory=dict)
    measuring: Json = field(
        # the paper's median times to the first violation are 4,156 and 9,634 steps: the horizon lies beyond
        default_factory=lambda: {"episodes": 10, "states": 50, "replays": 12, "horizon": 12_000}
    )


SCALES = {
    "smoke": Scale(  # does everything work? Seconds a run; the scores mean nothing
        "smoke", 1, "objects",
        {
            "steps": 48, "hidden_sizes": (16, 16), "batch_size": 16, "ensemble_size": 2, "utd": 0.25,
            "learning_starts": 16, "warm_start_updates": 0, "evaluate_every": 24, "evaluation_episodes": 1,
            "checkpoint_every": 24, "log_every": 12,
        },
        {"max_episode_steps": 40},
        {"episodes": 1, "states": 3, "horizon": 15},
    ),
    "cpu": Scale("cpu", 5, "objects", {"compile": has_cpp_compiler()}),
    "paper": Scale(  # the paper's observation, and RLPD's network
        "paper", 5, "pixels", {"ensemble_size": 10, "hidden_sizes": (256, 256), "utd": 1.0}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One line of a comparison: a preset, and what differs from it."""

    name: str
    preset: str = "full"
    values: Settings = field(default_factory=dict)


RANDOM = Variant("random policy, same guard", "full", {"guard": "random"})
"""Stands beside every guarded score: what the guard alone is worth."""
DRAWN = Variant("RLPD-GX, drawn from the safe set", values={"backup": "renormalise", "execution": "resample"})
"""Our own: proposals, and the actions of the backup, are drawn from the safe set instead of being moved into it."""


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    scale: Scale
    data: Callable[[str], str] = lambda task: ""
    """Task -> its offline data; empty where there is none."""
    games: tuple[str, ...] = ()
    seeds: int | None = None

    def choose(self, games: Sequence[str]) -> Sequence[str]:
        """The games to run: those asked for, or those of the experiment."""
        if self.games:
            return self.games
        return games[:1] if self.scale.name == "smoke" else games

    @property
    def seed_range(self) -> range:
        """The seeds to run."""
        return range(self.seeds or self.scale.seeds)


@dataclass(frozen=True)
class Findings:
    """What the rows of an experiment show."""

    verdicts: Sequence[ClaimVerdict]
    tables: Sequence[Table]
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper: which runs, and what they show."""

    name: str
    title: str
    about: str
    plan: Callable[[Request], list[Planned]]
    show: Callable[[Rows], Findings]


def atari_runs(
    request: Request,
    games: Iterable[str],
    variants: Sequence[Variant],
    steps: int,
    *,
    measure: tuple[str, ...] = (),
    settings: Settings | None = None,
    labels: Json | None = None,
) -> list[Planned]:
    """Every variant in every game with every seed."""
    scale, plan = request.scale, []
    for game in games:
        if game not in GAMES:
            raise GxError(f"--games {game}: there is no such game; there are {', '.join(GAMES)}")
        for variant in variants:
            for seed in request.seed_range:
                values = ATARI | {"env": f"Atari/{game}-{scale.observation}", "steps": steps}
                values |= {"offline": data} if (data := request.data(game)) else {}
                values |= (settings or {}) | variant.values | scale.settings
                values["env_kwargs"] = values["env_kwargs"] | scale.env_kwargs
                values["seed"] = seed
                about = {"game": game, "variant": variant.name, "seed": seed, "scale": scale.name}
                about |= labels or {}
                plan.append(named(Planned("", values, variant.preset, about, measure, scale.measuring)))
    return plan


def named(planned: Planned) -> Planned:
    """The run with a folder name that follows from its settings, so that experiments share their runs."""
    run = planned.config.run
    task = run.env.rpartition(":")[2].replace("/", "-")
    return replace(planned, name=f"{task}-{run.guard.replace(':', '.')}-seed{run.seed}")
