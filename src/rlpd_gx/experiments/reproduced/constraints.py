"""Our own: MuJoCo tasks under the action constraints of the public benchmark (Kasaura et al., 2023)."""

from rlpd_gx.config import Settings
from rlpd_gx.errors import GxError
from rlpd_gx.experiments import showing
from rlpd_gx.experiments.evidence import (
    SEEDS_FOR_A_CLAIM,
    Rows,
    better,
    judged,
    measured,
    ratio,
    score,
    together,
)
from rlpd_gx.experiments.experiment import RANDOM, Experiment, Findings, Request, Variant, named
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.report.chapter import ClaimVerdict, Word
from rlpd_gx.trees import Json

TASKS = {  # short name -> environment and rules
    "Hopper": ("Hopper-v5", "rlpd_gx.envs.mujoco:power"),
    "HalfCheetah": ("HalfCheetah-v5", "rlpd_gx.envs.mujoco:cheetah_power"),
    "Walker2d": ("Walker2d-v5", "rlpd_gx.envs.mujoco:power"),
}
OURS, UNGUARDED, SHIELD, CLONE = "RLPD-GX", "no guard", "SAC+Shield", "guarded cloning"
PLAIN = {name: f"{name}, policy not averaged" for name in (OURS, UNGUARDED)}
NOT_AVERAGED: Settings = {"policy_tau": 1.0}
VARIANTS = (
    Variant(OURS, "rlpd-gx"),
    Variant(UNGUARDED, "rlpd-gx", {"guard": "none"}),
    Variant(PLAIN[OURS], "rlpd-gx", NOT_AVERAGED),
    Variant(PLAIN[UNGUARDED], "rlpd-gx", NOT_AVERAGED | {"guard": "none"}),
    Variant(CLONE, "clone", {"steps": 0, "warm_start_updates": 10_000, "utd": 1.0}),
    Variant(RANDOM.name, "rlpd-gx", NOT_AVERAGED | {"guard": "random"}),
    Variant(SHIELD, "rlpd-gx", {"guard": "shield"}),
)
BUDGET: Settings = {  # chosen for Hopper on seed 11 (docs/results.md)
    "ensemble_size": 2, "target_subset": 2, "utd": 4.0, "batch_size": 128, "steps": 20_000, "evaluation_episodes": 10,
}  # fmt: skip
WITH_DATA: Settings = {
    "offline_state": "rlpd_gx.envs.mujoco:stored_joint_state",
    "warm_start_updates": 10_000,
}


def plan(request: Request) -> list[Planned]:
    """Guarded, unguarded, shielded, cloned and random, with offline data where --data has some."""
    scale, runs = request.scale, []
    tasks = request.games or ([*TASKS][:1] if scale.name == "smoke" else [*TASKS])
    for task in tasks:
        if task not in TASKS:
            raise GxError(f"--games {task}: the tasks of constraints are {', '.join(TASKS)}")
        env, rules = TASKS[task]
        offline = request.data(task)
        data: Settings = {"offline": offline} | WITH_DATA if offline else {}
        for variant in _variants(task, bool(offline)):
            for seed in request.seed_range:
                values = BUDGET | {"env": env, "rules": rules} | data | scale.settings | variant.values
                if scale.name == "smoke":
                    values |= {"env_kwargs": scale.env_kwargs} | (
                        {"warm_start_updates": 10} if variant.name == CLONE else {}
                    )
                labels = {"game": task, "variant": variant.name, "seed": seed, "scale": scale.name}
                measure = ("dependence",)
                runs.append(
                    named(
                        Planned("", values | {"seed": seed}, variant.preset, labels, measure, scale.measuring)
                    )
                )
    return runs


def _variants(task: str, has_data: bool) -> list[Variant]:
    """Cloning needs data; what averaging the policy does is shown where it was chosen, under another rule."""
    left_out = ([] if has_data else [CLONE]) + ([] if task == "Hopper" else [*PLAIN.values()])
    return [variant for variant in VARIANTS if variant.name not in left_out]


def last_five(row: Json) -> float | None:
    """Mean return of the last five evaluations: policies swing from one to the next."""
    returns = [height for _, height in row["curve"][-5:]]
    return sum(returns) / len(returns) if returns else row["score"]


def show(rows: Rows) -> Findings:
    """Returns, and violations as a wrapper below the guard counts them."""
    names = [variant.name for variant in VARIANTS if rows.of(variant=variant.name).rows]
    points = {name: rows.points(name, last_five) for name in names}
    verdicts = [_no_violation(rows)]
    for guarded, free, how in ((OURS, UNGUARDED, ""), (*PLAIN.values(), " (policy not averaged)")):
        if guarded in points and free in points:
            parts = [
                judged(game, ratio({game: values}, points[free]), 0.9, "ratio of returns")
                for game, values in points[guarded].items()
            ]
            verdicts.append(together(f"Guarded returns are at least 0.9 of the unguarded ones{how}", parts))
    for name, other in ((OURS, SHIELD), (OURS, CLONE), (OURS, RANDOM.name), *PLAIN.items()):
        if name in points and other in points:
            verdicts.append(better(f"{name} has higher returns than {other}", points[name], points[other]))
    returns = {
        "return, last five evaluations": last_five,
        "final evaluation": score,
        "the final policy without its guard": measured("dependence", "return_without_guard"),
    }
    tables = [
        showing.value_table("Returns", rows, names, returns),
        showing.every_seed("Last five evaluations, every seed", rows, last_five),
        showing.safety_table(rows, names),
    ]
    return Findings(verdicts, tables)


def _no_violation(rows: Rows) -> ClaimVerdict:
    guarded = [row for row in rows.rows if row["enforces"]]
    counts = [
        row["outside"][where] for row in guarded if row["outside"] for where in ("training", "evaluation")
    ]
    claim, reason = (
        "The guard lets no forbidden action through",
        f"{showing.outside(guarded)} executed actions",
    )
    if not counts:
        return ClaimVerdict(Word.UNDECIDED, claim, reason)
    if any(count["violations"] for count in counts):
        return ClaimVerdict(Word.NOT_CONFIRMED, claim, reason)
    enough = len({row["seed"] for row in guarded}) >= SEEDS_FOR_A_CLAIM
    return ClaimVerdict(Word.CONFIRMED if enough else Word.UNDECIDED, claim, reason)


EXPERIMENT = Experiment(
    "constraints",
    "Action constraints",
    "Not in the paper: MuJoCo tasks under the power limits of the action-constrained RL benchmark. Hopper and "
    "HalfCheetah have offline data of policies from beginner to expert; Walker2d has none, and learns from its 20,000 "
    "steps alone.",
    plan,
    show,
)
