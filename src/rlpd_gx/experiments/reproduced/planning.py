"""Our own: 26 games under a privileged look-ahead beside published planners, in games of 5 minutes (18,000 frames)."""

from dataclasses import replace

import numpy as np

from rlpd_gx.config import Settings
from rlpd_gx.experiments import evidence, reported, showing
from rlpd_gx.experiments.evidence import Rows, Value, better, judged, of_enough_games, score, score_rate
from rlpd_gx.experiments.experiment import (
    LOOK_AHEAD,
    RANDOM,
    Experiment,
    Findings,
    Request,
    Variant,
    atari_runs,
)
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.reproduced.atari100k import KEYS, OUR_LEARNER, aggregates, games_above, with_interval
from rlpd_gx.experiments.reproduced.atari100k_cells import CLONING as CLONED
from rlpd_gx.metrics.scores import AGGREGATES
from rlpd_gx.report.chapter import ClaimVerdict, Table

# The cheapest look-ahead first (results/atari-verify.txt).
GAMES = (
    "DemonAttack", "Qbert", "Freeway", "Asterix", "Alien", "MsPacman", "CrazyClimber", "Assault", "RoadRunner",
    "Amidar", "PrivateEye", "Breakout", "ChopperCommand", "Seaquest", "Pong", "Jamesbond", "Kangaroo", "KungFuMaster",
    "Boxing", "BattleZone", "Gopher", "BankHeist", "Krull", "UpNDown", "Hero", "Frostbite",
)  # fmt: skip
GAME_STEPS = 4_500  # of 4 frames
# A tenth of those of `atari100k`, since steps are slow here. In two games of tuning the learner was ahead of a random
# policy by then, with and without offline data (docs/results.md).
STEPS = 10_000
OURS, CLONING, CHANCE = (f"{who}, look-ahead" for who in ("RLPD-GX", "cloning", "random policy"))
VARIANTS = (
    Variant(OURS, OUR_LEARNER),
    Variant(CHANCE, values=RANDOM.values | {"steps": 0}),  # it does not learn: evaluation says it all
    Variant(CLONING, "clone", CLONED),
)
PLANNERS = ("IW(1)", "2BFS", "UCT", "rollout_iw_pixels")
THEIR_FRAMES = 150_000  # simulated for each decision by IW(1), 2BFS and UCT
GAMES_TO_WIN = 18


def plan(request: Request) -> list[Planned]:
    """The learner, a random policy and cloning of the same data; one evaluation, of two games."""
    limit = {"clip_rewards": True, "life_loss_ends": True, "max_episode_steps": GAME_STEPS}
    settings: Settings = {
        "rules": LOOK_AHEAD, "env_kwargs": limit, "evaluate_every": STEPS, "evaluation_episodes": 1,
    }  # fmt: skip
    scale = request.scale
    if scale.observation == "objects":
        request = replace(request, scale=replace(scale, observation="cells"))
    return atari_runs(request, request.choose(GAMES), VARIANTS, STEPS, settings=settings)


def show(rows: Rows) -> Findings:
    """Scores beside the planners', and points per step beside a random policy."""
    games = rows.games
    published = reported.tables()["planning"]["games"]
    columns = [rows.points(variant.name, score) for variant in VARIANTS]
    lines = [
        [
            game,
            *(showing.cell(points.get(game, [])) for points in columns),
            *(showing.short(published[game][p]) if p in published[game] else "–" for p in PLANNERS),
        ]
        for game in games
    ]
    names = [variant.name for variant in VARIANTS]
    frames = [_frames(rows, name) for name in names]
    theirs = ["half a second" if "iw_p" in planner else f"{THEIR_FRAMES:,}" for planner in PLANNERS]
    lines.append(["simulated frames a decision", *frames, *theirs])
    heads = ["", *names, *(f"{planner}, published" for planner in PLANNERS)]
    pace: dict[str, Value] = {
        "points per 1,000 steps": score_rate,
        "unsafe events per 1,000 steps": evidence.event_rate,
    }
    return Findings(
        [*_above_iw(rows), _above_chance(rows)],
        [
            Table("Scores in games of 18,000 frames", heads, lines),
            _normalised(rows),
            Table(
                "Games with more points per step",
                ["", "than", "games"],
                [
                    [OURS, other, games_above(rows.points(OURS, score_rate), rows.points(other, score_rate))]
                    for other in names[1:]
                    if rows.of(variant=other).rows
                ],
            ),
            showing.value_table("The final evaluation", rows, names, pace),
            showing.safety_table(rows, names),
        ],
    )


def _normalised(rows: Rows) -> Table:
    """Mean, median and IQM of ours and of planners, in the games that ours have."""
    games = [*rows.points(OURS, score)]
    lines = [
        [
            name,
            str(len(rows.points(name, score))),
            *map(with_interval, aggregates(rows, name).values()),
        ]
        for name in (variant.name for variant in VARIANTS)
        if rows.points(name, score)
    ]
    for planner in PLANNERS:
        known = [game for game in games if planner in reported.tables()["planning"]["games"][game]]
        if known:
            values = [f"{AGGREGATES[key](_column(planner, known)):.2f}" for key in KEYS.values()]
            lines.append([f"{planner}, published", str(len(known)), *values])
    return Table("Human-normalised scores in games of 18,000 frames", ["", "games", *KEYS], lines)


def _above_iw(rows: Rows) -> list[ClaimVerdict]:
    games, verdicts = [*rows.points(OURS, score)], []
    for how, found in aggregates(rows, OURS).items() if games else ():
        theirs = float(AGGREGATES[KEYS[how]](_column("IW(1)", games)))
        verdict = judged(f"{OURS} is above IW(1) in these games ({how} {theirs:.2f})", found, theirs, how)
        verdicts.append(of_enough_games(verdict, len(games), len(GAMES)))
    return verdicts


def _above_chance(rows: Rows) -> ClaimVerdict:
    """More points per step than the random policy: over all games, and apart in how many."""
    ours, chance = rows.points(OURS, score_rate), rows.points(CHANCE, score_rate)
    claim = f"{OURS} has more points per step than {CHANCE}"
    apart = sum(
        evidence.mean(ours[game]).low > evidence.mean(chance[game]).high for game in ours if game in chance
    )
    over_all = better(claim, ours, chance, least_games=len(GAMES))
    told = f"{over_all.reason}; intervals of seeds apart in {apart} games (wanted: {GAMES_TO_WIN} of {len(GAMES)})"
    return ClaimVerdict(over_all.word, claim, told)


def _frames(rows: Rows, variant: str) -> str:
    """Simulated frames for each decision, both in training and in all evaluations.

    A row has the steps of its last evaluation; those of all of them are what was counted from outside.
    """
    found = [row for row in rows.of(variant=variant).rows if row["outside"]]
    decisions = sum(row["training"]["steps"] + row["outside"]["evaluation"]["executed"] for row in found)
    return f"{4 * sum(row['simulated_steps'] for row in found) / decisions:,.0f}" if decisions else "–"


def _column(planner: str, games: list[str]) -> np.ndarray:
    published = reported.tables()["planning"]["games"]
    return np.array([[reported.normalised(game, published[game][planner])] for game in games])


EXPERIMENT = Experiment(
    "planning",
    "Beside planners",
    "Not in the paper: a look-ahead uses the simulator, so its peers are planners (150,000 simulated frames "
    "a decision), not model-free agents.",
    plan,
    show,
)
