"""Our own: three games from pixels, what the paper observes, beside published agents at the same number of steps."""

from dataclasses import replace

from rlpd_gx.experiments import reported, showing
from rlpd_gx.experiments.evidence import Rows, judged, mean, score, together
from rlpd_gx.experiments.experiment import Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.offline import preferring
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.reproduced.atari100k import OUR_LEARNER, SETTINGS
from rlpd_gx.report.chapter import Table

GAMES = ("Pong", "Boxing", "Freeway")
OURS = Variant("RLPD-GX from pixels", OUR_LEARNER, {"guard": "none"})
AGENTS = ("DER", "DrQ(eps)", "SPR")
# The settings of objects, but minibatches and updates as of DER and DrQ(eps). What is subtracted from images was chosen
# on recorded games of Pong, after a run of Pong with seed 0 had failed: that game and seed are not fresh.
LIKE_THEIRS = {"batch_size": 32, "utd": 1.0}
LEARNED_PONG = 10


def plan(request: Request) -> list[Planned]:
    """The learner alone in three games; there is no guard, since theirs have none."""
    seeing = replace(
        request,
        scale=replace(request.scale, observation="pixels"),
        data=preferring("recorded", request.data),  # games of a trained agent
    )
    return atari_runs(seeing, seeing.choose(GAMES), [OURS], 100_000, settings=SETTINGS | LIKE_THEIRS)


def show(rows: Rows) -> Findings:
    """Scores beside theirs, of which the best counts."""
    points, published = rows.points(OURS.name, score), reported.tables()["pixels"]["games"]
    games = [game for game in rows.games if game in published]
    parts = [
        judged(game, mean(points[game]), max(published[game].values()), "mean score")
        for game in games
        if game in points
    ]
    verdicts = [together(f"RLPD-GX scores higher than {', '.join(AGENTS[:-1])} and {AGENTS[-1]}", parts)]
    if "Pong" in points:
        verdicts.append(
            judged(f"It reaches {LEARNED_PONG} in Pong", mean(points["Pong"]), LEARNED_PONG, "mean score")
        )
    lines = [[OURS.name, *(showing.cell(points.get(game, [])) for game in games)]]
    lines += [
        [f"{agent}, published", *(showing.short(published[game][agent]) for game in games)]
        for agent in AGENTS
    ]
    lines += [
        [name, *(showing.short(reported.atari100k(name, game)) for game in games)]
        for name in ("human", "random")
    ]
    return Findings(verdicts, [Table("Scores from pixels, 100,000 steps", ["", *games], lines)])


EXPERIMENT = Experiment(
    "pixels",
    "From pixels",
    "The paper observes pixels; our other Atari runs at scale cpu see objects. Ours also have offline data of the "
    "package, in Pong ten recorded games of a trained agent, elsewhere the planner's; the published agents learn from "
    "their 100,000 steps alone, and their scores are means of 100 runs. The encoder was mended on recorded games of "
    "Pong, after a run of Pong with seed 0 had failed.",
    plan,
    show,
)
