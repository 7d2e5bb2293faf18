"""Appendix "Later stage": an unguarded checkpoint at 50,000 steps, forked into three samplers for 50,000 more."""

from dataclasses import replace

from rlpd_gx.experiments import showing
from rlpd_gx.experiments.evidence import Rows, better, measured_curve, score, together
from rlpd_gx.experiments.experiment import Experiment, Request, Variant, atari_runs, named
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.experiments.reproduced.dts_early import DTS, FIXED, SAMPLERS, UNIFORM
from rlpd_gx.report.chapter import Chapter

GAMES = ("BankHeist", "MsPacman", "Alien", "PrivateEye")
NAMES = [variant.name for variant in SAMPLERS]
HALF_STEPS = 50_000


def plan(request: Request) -> list[Planned]:
    """The first half is shared; each sampler continues from its last checkpoint."""
    games = request.choose(("Boxing",) if request.scale.name == "smoke" else GAMES)
    first = atari_runs(request, games, (Variant("first half", "no-guardian"),), HALF_STEPS)
    plan = []
    for shared in first:
        steps = 2 * shared.config.run.steps
        for sampler in SAMPLERS:
            values = shared.values | sampler.values | {"steps": steps}
            labels = shared.labels | {"variant": sampler.name}
            whole = replace(shared, values=values, labels=labels, measure=("horizons",), fork=shared)
            plan.append(named(whole))
    return plan


def show(rows: Rows) -> Chapter:
    """Scores at 100,000 steps, and returns of episodes that are cut at a horizon."""
    points = {name: rows.points(name, score) for name in NAMES}
    verdicts = [
        together(
            "DTS scores higher than uniform and fixed-k late in training",
            [better(f"against {name}", points[DTS], points[name]) for name in (UNIFORM, FIXED)],
        )
    ]
    horizons = measured_curve("horizons", "horizon", "return")
    figures = [
        showing.curve(
            rows.of(game=game), NAMES, horizons, f"Horizon truncation in {game}", x_label="horizon in steps"
        )
        for game in rows.games
    ]
    tables = [showing.score_table(rows, NAMES, "dts_late"), showing.safety_table(rows, NAMES)]
    return showing.chapter(
        EXPERIMENT.name, EXPERIMENT.title, EXPERIMENT.about, rows, verdicts, tables, figures
    )


EXPERIMENT = Experiment(
    "dts-late",
    "DTS after 50,000 steps",
    "The paper forks one unguarded checkpoint at 50,000 steps into three samplers and reports scores at 100,000 steps.",
    plan,
    show,
)
