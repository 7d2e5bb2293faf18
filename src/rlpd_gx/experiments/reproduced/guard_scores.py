"""Table "Performance comparison across five Atari games": final scores under each guard."""

from rlpd_gx.experiments import reported, showing
from rlpd_gx.experiments.evidence import Rows, better, measured, score
from rlpd_gx.experiments.experiment import RANDOM, Experiment, Findings, Request, Variant, atari_runs
from rlpd_gx.experiments.plan import Planned
from rlpd_gx.report.chapter import ClaimVerdict, Word

GAMES = ("Seaquest", "MsPacman", "Qbert", "BankHeist", "Hero")
OURS = "RLPD-GX"
OTHERS = {
    "no guard": "none",
    "execution mask only": "mask",
    "CMDP-Lagrangian": "lagrangian",
    "classifier shield": "classifier",
    "offline only": "offline",
}
OF_OUR_OWN = {"replacement": "replace", "penalty": "penalty", "two-stage": "two-stage"}
VARIANTS = (
    Variant(OURS),
    *(Variant(name, values={"guard": guard}) for name, guard in (OTHERS | OF_OUR_OWN).items()),
    RANDOM,
)
NAMES = [variant.name for variant in VARIANTS]


def plan(request: Request) -> list[Planned]:
    """Every guard in the paper's five games."""
    games = ("Freeway",) if request.scale.name == "smoke" else GAMES
    return atari_runs(request, request.choose(games), VARIANTS, 100_000, measure=("dependence",))


def show(rows: Rows) -> Findings:
    """Scores with the guard, and of the same policy without it."""
    ours = rows.points(OURS, score)
    verdicts = [
        better(f"RLPD-GX scores higher than {name}", ours, rows.points(name, score))
        for name in (*OTHERS, RANDOM.name)
    ]
    values = {
        "with the guard": measured("dependence", "return_with_guard"),
        "without it": measured("dependence", "return_without_guard"),
        "unsafe events per step with": measured("dependence", "unsafe_event_rate_with_guard"),
        "without": measured("dependence", "unsafe_event_rate_without_guard"),
    }
    tables = [
        showing.score_table(rows, NAMES, "guards"),
        *(
            showing.value_table(f"Guard dependence in {game}", rows.of(game=game), NAMES, values)
            for game in rows.games
        ),
        showing.safety_table(rows, NAMES),
    ]
    return Findings([*verdicts, one_score()], tables, [showing.score_bars(rows, NAMES)])


def one_score() -> ClaimVerdict:
    """Whether the paper's two tables agree on the score of its method."""
    claim = "The scores of RLPD-GX here are those of the main table"
    here = {game: reported.score("guards", OURS, game) for game in GAMES}
    different = [
        f"{game} {showing.short(value)} and {showing.short(reported.atari100k(OURS, game))}"
        for game, value in here.items()
        if value is not None and value != reported.atari100k(OURS, game)
    ]
    if different:
        return ClaimVerdict(Word.IMPOSSIBLE, claim, f"its tables disagree: {', '.join(different)}")
    return ClaimVerdict(Word.UNDECIDED, claim, "its tables agree")


EXPERIMENT = Experiment(
    "guard-scores",
    "Scores under each guard",
    "The paper reports final scores under six guards in five games.",
    plan,
    show,
)
