"""Our own: `atari100k` again, with maps around the player, more data of the planner and shorter spans."""

from dataclasses import replace

from rlpd_gx.config import Settings
from rlpd_gx.experiments import reported
from rlpd_gx.experiments.evidence import Rows
from rlpd_gx.experiments.experiment import DRAWN, RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.offline import preferring
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.reproduced import atari100k
from rlpd_gx.experiments.reproduced.atari100k import CLONED, DRAWS, OUR_LEARNER, Tables

OURS = "RLPD-GX, cells"
CLONING: Settings = CLONED | {"normalise": True}  # as the learner has it
CHANCE = Variant(RANDOM.name, values=RANDOM.values | DRAWS)
TABLES: Tables = {
    "RAM rules": (
        Variant(OURS, OUR_LEARNER, DRAWN.values),
        Variant("cloning, same guard", "clone", CLONING | DRAWS),
        CHANCE,
    ),
    "no guard": (
        Variant(f"{OURS}, without a guard", OUR_LEARNER, {"guard": "none"}),
        Variant("cloning, no guard", "clone", CLONING | {"guard": "none"}),
    ),
}
# The preset as it is. Chosen on the games of tuning (results/learner-screening.jsonl) before any run of these tables.
SETTINGS: Settings = {"evaluate_every": 50_000}


def plan(request: Request) -> list[Planned]:
    """Learner and cloning see cells; the random policy sees nothing, so its runs are those of `atari100k`."""
    scale = request.scale
    games = request.choose(("Boxing",) if scale.name == "smoke" else reported.GAMES)
    seeing = replace(
        request,
        scale=replace(scale, observation="cells") if scale.observation == "objects" else scale,
        data=preferring("planner-30k", request.data),
    )
    runs = []
    for table, variants in TABLES.items():  # one variant after the other: all games of the learner first
        for variant in variants:
            asked, settings = (request, atari100k.SETTINGS) if variant is CHANCE else (seeing, SETTINGS)
            labels = {"table": table}
            runs += atari_runs(asked, games, [variant], 100_000, settings=settings, labels=labels)
    return runs


def show(rows: Rows) -> Findings:
    """As of `atari100k`."""
    return atari100k.shown(rows, TABLES, {})


EXPERIMENT = Experiment(
    "atari100k-cells",
    "Atari-100k from cells",
    "As Atari-100k, but the learner sees maps around the player (`Atari/GAME-cells`), spans have three steps instead "
    "of five, the policy is averaged, and the planner's data has 30,000 steps a game instead of 5,000 to 10,000. "
    "Chosen in Assault, Gopher and DemonAttack (seeds 11 to 13), after the scores of Atari-100k had been seen.",
    plan,
    show,
)
