"""Our own: scores under a privileged look-ahead beside published planners, in games of 5 minutes (18,000 frames)."""

import numpy as np

from rlpd_gx.experiments import reported, showing
from rlpd_gx.experiments.evidence import Rows, judged, score
from rlpd_gx.experiments.experiment import LOOK_AHEAD, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.reproduced.atari100k import AHEAD, KEYS, RANDOM_AHEAD, aggregates
from rlpd_gx.metrics.scores import AGGREGATES
from rlpd_gx.report.chapter import Table

# cheap look-ahead first
GAMES = ("Boxing", "Qbert", "Asterix", "Breakout", "MsPacman", "Pong", "Seaquest", "Freeway")
GAME_STEPS = 4_500  # of 4 frames
VARIANTS = (
    Variant(AHEAD, values={"rules": LOOK_AHEAD}),
    Variant(RANDOM_AHEAD, values={"guard": "random", "rules": LOOK_AHEAD}),
)
PLANNERS = ("IW(1)", "2BFS", "UCT", "rollout_iw_pixels")
THEIR_FRAMES = 150_000  # simulated for each decision by IW(1), 2BFS and UCT


def plan(request: Request) -> list[Planned]:
    """The learner and a random policy under look-ahead."""
    limit = {"env_kwargs": {"clip_rewards": True, "life_loss_ends": True, "max_episode_steps": GAME_STEPS}}
    return atari_runs(request, request.choose(GAMES), VARIANTS, 100_000, settings=limit)


def show(rows: Rows) -> Findings:
    """Ours and theirs in the same games, with simulated frames for each decision."""
    games, published = rows.games, reported.tables()["planning"]["games"]
    lines = []
    for variant in VARIANTS:
        points = rows.points(variant.name, score)
        lines.append(
            [
                variant.name,
                *(showing.cell(points.get(game, [])) for game in games),
                f"{_frames(rows, variant.name):,.0f}",
            ]
        )
    for planner in PLANNERS:
        cells = [
            showing.short(published[game][planner]) if planner in published[game] else "–" for game in games
        ]
        lines.append(
            [f"{planner}, published", *cells, "half a second" if "iw_p" in planner else f"{THEIR_FRAMES:,}"]
        )
    ours = [*rows.points(AHEAD, score)]
    iw = {
        how: float(AGGREGATES[key](_column("IW(1)", ours))) if ours else np.nan for how, key in KEYS.items()
    }
    verdicts = [
        judged(f"{AHEAD} is above IW(1) in these games ({how} {iw[how]:.2f})", found, iw[how], how)
        for how, found in aggregates(rows, AHEAD).items()
    ]
    tables = [
        Table("Scores in games of 18,000 frames", ["", *games, "simulated frames a decision"], lines),
        showing.safety_table(rows, [variant.name for variant in VARIANTS]),
    ]
    return Findings(verdicts, tables)


def _frames(rows: Rows, variant: str) -> float:
    """Simulated frames for each decision, both in training and in all evaluations.

    A row has the steps of its last evaluation; those of all of them are what was counted from outside.
    """
    found = [row for row in rows.of(variant=variant).rows if row["outside"]]
    decisions = sum(row["training"]["steps"] + row["outside"]["evaluation"]["executed"] for row in found)
    return 4 * sum(row["simulated_steps"] for row in found) / max(decisions, 1)


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
