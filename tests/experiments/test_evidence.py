"""Verdicts follow from rows: known answers, and what too few seeds may not claim."""

import numpy as np
import pytest
from made_rows import TASKS, made_rows

from rlpd_gx.experiments import evidence, reported
from rlpd_gx.experiments.evidence import Interval, Rows, better, improvement, judged, lower, ratio, together
from rlpd_gx.experiments.experiment import RANDOM, SCALES, Request
from rlpd_gx.experiments.reproduced import NAMES, ablation, find, guard_scores
from rlpd_gx.experiments.showing import chapter
from rlpd_gx.report.chapter import ClaimVerdict, Word

HIGH, LOW = (
    {"a": [5, 6, 7, 8, 9], "b": [15, 16, 17, 18, 19]},
    {"a": [0, 1, 2, 3, 4], "b": [10, 11, 12, 13, 14]},
)


def test_probability_of_improvement():
    assert improvement(HIGH, LOW).value == 1.0
    assert improvement(LOW, HIGH).value == 0.0
    assert improvement(HIGH, HIGH).value == 0.5
    # by hand: pairs above, of nine: (2, 1) (3, 1) (3, 2); three ties count half
    assert improvement({"a": [1, 2, 3]}, {"a": [1, 2, 3]}).value == 0.5
    assert improvement({"a": [2, 3]}, {"a": [1, 2]}).value == pytest.approx((2 + 1 + 0.5) / 4)
    # a game that only one has does not count
    assert improvement({"a": [2], "b": [0]}, {"a": [1]}).value == 1.0


INTERVALS = {  # of equal things -> what the interval should hold
    "mean": (lambda a, b: evidence.mean(a["0"]), 10.0),
    "improvement": (improvement, 0.5),
    "ratio": (ratio, 1.0),
}


@pytest.mark.parametrize("games", [1, 4])
@pytest.mark.parametrize("name", INTERVALS)
def test_an_interval_of_five_seeds_covers_the_truth_about_as_often_as_it_says(name, games):
    chance, (interval, truth) = np.random.default_rng(1), INTERVALS[name]
    missed = 0
    for _ in range(400):
        a, b = ({str(g): chance.normal(10, 3, 5) for g in range(games)} for _ in range(2))
        found = interval(a, b)
        missed += not found.low <= truth <= found.high
    assert 2 <= missed <= 32  # 20 of 400 are 5%


def test_a_ratio_compares_the_same_games():
    ours = {"small": [2.0] * 5, "large": [100.0] * 5}
    assert ratio(ours, {"small": [1.0] * 5}).value == pytest.approx(2)
    assert ratio(ours, {"small": [1.0] * 5, "large": [200.0] * 5}).value == pytest.approx(1)  # 2 and 1/2
    assert not np.isfinite(ratio(ours, {"other": [1.0] * 5}).value)
    assert not np.isfinite(ratio(ours, {"small": [-1.0] * 5}).value)
    # one seed in each of five games is not five seeds
    many = {str(game): [1.0] for game in range(5)}
    assert not ratio(many, many).is_known


def test_words():
    assert better("x", HIGH, LOW).word == Word.CONFIRMED
    assert better("x", LOW, HIGH).word == Word.NOT_CONFIRMED
    assert better("x", HIGH, HIGH).word == Word.UNDECIDED
    assert lower("x", LOW, HIGH).word == Word.CONFIRMED
    assert judged("x", Interval(2.5, 2.1, 3.0), 2.0, "ratio").word == Word.CONFIRMED
    assert judged("x", Interval(1.5, 1.1, 1.9), 2.0, "ratio").word == Word.NOT_CONFIRMED
    assert judged("x", Interval(2.5, 1.9, 3.0), 2.0, "ratio").word == Word.UNDECIDED
    assert (
        judged("x", Interval(float("nan")), 2.0, "ratio").reason
        == "ratio: not measured, or a mean of 0 or less"
    )


def test_four_seeds_claim_nothing():
    four = {game: values[:4] for game, values in HIGH.items()}
    verdict = better("x", four, LOW)
    assert verdict.word == Word.UNDECIDED
    assert "fewer than 5 seeds" in verdict.reason
    assert not evidence.mean([1, 2, 3, 4]).is_known
    assert not ratio({"a": [1, 2, 3, 4]}, {"a": [1, 2, 3, 4, 5]}).is_known
    # four seeds in one game are enough to claim nothing
    assert better("x", {**HIGH, "a": [5, 6, 7, 8]}, LOW).word == Word.UNDECIDED


def test_a_claim_of_parts():
    yes, no, open_ = (ClaimVerdict(w, "c", "r") for w in (Word.CONFIRMED, Word.NOT_CONFIRMED, Word.UNDECIDED))
    assert together("x", [yes, yes]).word == Word.CONFIRMED
    assert together("x", [yes, open_]).word == Word.UNDECIDED
    assert together("x", [yes, open_, no]).word == Word.NOT_CONFIRMED
    assert together("x", []).word == Word.UNDECIDED


def test_the_newest_row_counts():
    old, new = (
        {"game": "a", "variant": "v", "seed": 0, "score": 1.0},
        {"game": "a", "variant": "v", "seed": 0, "score": 2.0},
    )
    assert Rows([old, new]).points("v", evidence.score) == {"a": [2.0]}
    at = [row | {"scale": scale} for row, scale in ((old, "cpu"), (new, "paper"))]
    assert Rows(at).of(scale="cpu").points("v", evidence.score) == {"a": [1.0]}


def test_what_the_paper_contradicts_itself():
    assert ablation.order_in_every_game().word == Word.IMPOSSIBLE
    assert "Amidar, Freeway" in ablation.order_in_every_game().reason
    assert "Seaquest 3,062 and 7,245" in guard_scores.one_score().reason


def test_reported_tables():
    mean = np.mean(
        [reported.normalised(game, reported.atari100k("RLPD-GX", game)) for game in reported.GAMES]
    )
    assert mean == pytest.approx(3.02, abs=0.01)  # as printed
    assert reported.score("ablation", "without DTS", "Breakout") == 473
    assert reported.score("ablation", "without DTS", "Pong") is None


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_shows_its_rows(name):
    def score(game, variant):
        return 100.0 if variant in ("RLPD-GX", "DTS") else 50.0

    rows = made_rows(name, score, games=TASKS.get(name, ("Boxing",)))
    whole = chapter(find(name), Rows(rows))
    assert whole.verdicts
    assert whole.tables
    assert str(len(rows)) in whole.facts["runs"]
    few = chapter(find(name), Rows([row for row in rows if row["seed"] < 4]))
    assert {v.word for v in few.verdicts} <= {Word.UNDECIDED, Word.IMPOSSIBLE}
    assert any("Fewer than 5 seeds" in note for note in few.notes)


def test_an_ablation_is_confirmed_where_every_part_pays():
    rows = made_rows(
        "ablation", lambda game, v: {"RLPD-GX": 100, "without DSS": 80, "without DTS": 60}.get(v, 40)
    )
    words = {v.claim: v.word for v in find("ablation").show(Rows(rows)).verdicts}
    assert words["Leaving out the Guardian costs more than DTS, and DTS more than DSS"] == Word.CONFIRMED
    turned = made_rows(
        "ablation", lambda game, v: {"RLPD-GX": 40, "without DSS": 60, "without DTS": 80}.get(v, 100)
    )
    words = {v.claim: v.word for v in find("ablation").show(Rows(turned)).verdicts}
    assert words["Leaving out the Guardian costs more than DTS, and DTS more than DSS"] == Word.NOT_CONFIRMED


def test_an_ablation_of_few_games_claims_nothing():
    parts = {"RLPD-GX": 100, "without DSS": 80, "without DTS": 60}
    for games, word in ((3, Word.UNDECIDED), (4, Word.CONFIRMED)):
        rows = made_rows("ablation", lambda game, v: parts.get(v, 40), games=ablation.GAMES[:games])
        verdicts = {v.claim: v for v in chapter(find("ablation"), Rows(rows)).verdicts}
        found = verdicts["Leaving out the Guardian costs more than DTS, and DTS more than DSS"]
        assert found.word == word
        assert ("a claim needs 4 games" in found.reason) == (games == 3)
    without_one = [row for row in rows if (row["game"], row["seed"]) != (ablation.GAMES[0], 4)]
    words = {v.word for v in chapter(find("ablation"), Rows(without_one)).verdicts}
    assert words == {Word.UNDECIDED, Word.IMPOSSIBLE}


def test_one_seed_in_each_of_many_games_claims_nothing():
    rows = Rows(made_rows("shield", lambda game, v: 100, games=ablation.GAMES, seeds=1))
    assert {v.word for v in find("shield").show(rows).verdicts} == {Word.UNDECIDED}


def test_a_claim_does_not_wait_for_variants_it_is_not_about():
    def score(game, variant):
        return 10_000.0 if variant == "RLPD-GX" else 1.0

    rows = made_rows("atari100k", score)
    begun = [row for row in rows if row["table"] != "no guard" or row["seed"] == 0]
    words = {v.claim: v.word for v in chapter(find("atari100k"), Rows(begun)).verdicts}
    assert words["Normalised median 1.25 (RAM rules)"] == Word.CONFIRMED


def test_the_best_learned_guard_is_not_known_before_all_have_run():
    rows = made_rows("guards", lambda game, v: 100.0, games=("Seaquest",))
    for row in rows:
        row["measured"]["ttfv"]["ttfv_restricted_mean_with_guard"] = (
            900.0 if row["variant"] == "RLPD-GX" else 100.0
        )
    words = {
        missing: [
            v.word
            for v in find("guards").show(Rows([r for r in rows if r["variant"] != missing])).verdicts
            if "doubles" in v.claim
        ]
        for missing in ("", "classifier shield")
    }
    assert words == {"": [Word.CONFIRMED], "classifier shield": [Word.UNDECIDED]}


def test_the_learner_stands_beside_cloning_in_every_table():
    rows = made_rows(
        "atari100k", lambda game, v: 50.0 if v.startswith("cloning") == (game == "Pong") else 10.0
    )
    whole = chapter(find("atari100k"), Rows(rows))
    words = {v.claim: v.word for v in whole.verdicts}
    assert words["RLPD-GX scores higher than cloning, same guard"] == Word.CONFIRMED
    (above,) = [table for table in whole.tables if "higher mean" in table.caption]
    assert ["RLPD-GX", "cloning, same guard", "25 of 26"] in above.rows
    assert len(above.rows) == 4


@pytest.mark.parametrize("games", [25, 26])
def test_a_line_that_was_added_later_has_aggregates_once_it_has_all_games(games):
    rows = made_rows("atari100k", lambda game, v: 50.0 if "averaged" in v else 10.0)
    later = [row for row in rows if "averaged" in row["variant"]]
    some = {row["game"] for row in later[: 5 * games]}
    begun = [row for row in rows if row not in later or row["game"] in some]
    whole = chapter(find("atari100k"), Rows(begun))
    (above,) = [table for table in whole.tables if "higher mean" in table.caption]
    assert ["RLPD-GX, averaged policy", "RLPD-GX", f"{games} of {games}"] in above.rows
    words = {v.claim: v.word for v in whole.verdicts}
    claim = "Our own, asked later: RLPD-GX, averaged policy scores higher than RLPD-GX"
    assert words[claim] == (Word.CONFIRMED if games == 26 else Word.UNDECIDED)
    named = [row[0] for row in whole.tables[0].rows]
    assert ("RLPD-GX, averaged policy" in named) == (games == 26)


def test_from_cells_only_what_learns_is_run_again():
    request = Request(SCALES["cpu"], games=("Pong",), seeds=1)
    known = {planned.fingerprint for planned in find("atari100k").plan(request)}
    again = {p.labels["variant"]: p for p in find("atari100k-cells").plan(request)}
    assert [name for name, planned in again.items() if planned.fingerprint in known] == [RANDOM.name]
    assert {p.config.run.env for name, p in again.items() if name != RANDOM.name} == {"Atari/Pong-cells"}
    ours = again["RLPD-GX, cells"].config
    assert (ours.data.interval, ours.learner.policy_tau) == ((3,), 0.003)  # the preset, as it is
    rows = made_rows("atari100k-cells", lambda game, variant: 50.0 if "cells" in variant else 10.0)
    words = {v.claim: v.word for v in chapter(find("atari100k-cells"), Rows(rows)).verdicts}
    assert words["RLPD-GX, cells scores higher than random policy, same guard"] == Word.CONFIRMED


def test_a_table_of_some_games_claims_nothing_though_another_has_all():
    rows = made_rows("atari100k", lambda game, variant: 10_000.0)
    begun = [row for row in rows if row["table"] == "no guard" or row["game"] == "Alien"]
    verdicts = {v.claim: v for v in chapter(find("atari100k"), Rows(begun)).verdicts}
    assert verdicts["Normalised mean 3.02 (no guard)"].word == Word.CONFIRMED
    of_one_game = verdicts["Normalised mean 3.02 (RAM rules)"]
    assert of_one_game.word == Word.UNDECIDED
    assert "a claim needs 26 games; so far mean over 1 games" in of_one_game.reason


@pytest.mark.parametrize(("in_boxing", "word"), [(50.0, Word.CONFIRMED), (20.0, Word.NOT_CONFIRMED)])
def test_from_pixels_the_best_published_agent_is_the_measure_in_every_game(in_boxing, word):
    best = {game: max(agents.values()) for game, agents in reported.tables()["pixels"]["games"].items()}
    assert best["Boxing"] == 35.7  # SPR's; above DER and DrQ(eps), so 20 is not enough
    rows = made_rows("pixels", lambda game, variant: in_boxing if game == "Boxing" else 30.0)
    higher, pong = chapter(find("pixels"), Rows(rows)).verdicts
    assert (higher.word, pong.word) == (word, Word.CONFIRMED)


def test_simulated_frames_are_divided_by_the_decisions_they_were_simulated_for():
    """Those of training and of all evaluations, not of the last one alone."""
    rows = made_rows("planning", lambda game, variant: 100.0, games=("Boxing",))
    for row in rows:
        row["simulated_steps"] = 10 * (1_000 + 4_000)
        row["training"] = row["training"] | {"steps": 1_000}
        row["evaluation"] = row["evaluation"] | {"steps": 400}
        row["outside"]["evaluation"]["executed"] = 4_000
    table = find("planning").show(Rows(rows)).tables[0]
    assert table.rows[-1][:4] == ["simulated frames a decision", "40", "40", "40"]  # 10 steps of 4 frames


def test_under_look_ahead_a_random_policy_is_beaten_by_points_per_step():
    """Scores say little there: who dies sooner plays a shorter game."""
    rows = made_rows("planning", lambda game, variant: 100.0)
    for row in rows:
        learned = row["variant"].startswith("RLPD-GX") and row["game"] != "Pong"
        row["evaluation"] = row["evaluation"] | {"steps": 1_000 if learned else 4_000}
    (found,) = [v for v in find("planning").show(Rows(rows)).verdicts if "points per step" in v.claim]
    assert found.word == Word.CONFIRMED
    assert "apart in 25 games" in found.reason


def test_planners_are_compared_in_the_games_that_ours_have():
    rows = made_rows("planning", lambda game, variant: 1e6, games=("Qbert", "Pong"))
    (table,) = [t for t in chapter(find("planning"), Rows(rows)).tables if "normalised" in t.caption]
    iw = [line for line in table.rows if line[0].startswith("IW(1)")]
    scores = [
        reported.normalised(game, reported.tables()["planning"]["games"][game]["IW(1)"])
        for game in ("Qbert", "Pong")
    ]
    assert iw == [["IW(1), published", "2", *[f"{sum(scores) / 2:.2f}"] * 3]]


def test_a_score_is_taken_apart_into_pace_and_unsafe_events():
    row = {
        "returns": [30.0, 10.0],
        "evaluation": {"steps": 8_000, "unsafe_events": 4},
        "unsafe_events_watched": True,
    }
    assert evidence.score_rate(row) == pytest.approx(5.0)
    assert evidence.event_rate(row) == pytest.approx(0.5)
    assert evidence.event_rate(row | {"unsafe_events_watched": False}) is None
    assert (
        evidence.score_rate(row | {"evaluation": {}}) is evidence.event_rate(row | {"evaluation": {}}) is None
    )


def test_more_points_per_step_is_not_fewer_unsafe_events():
    rows = made_rows("ablation", lambda game, variant: 5.0 if variant == ablation.RANDOM.name else 50.0)
    words = {v.claim: v.word for v in ablation.show(Rows(rows)).verdicts if v.claim.startswith("Our own")}
    assert sorted(words.values()) == [
        Word.CONFIRMED,
        Word.UNDECIDED,
    ]  # every made row has the same unsafe events


def test_tasks_with_rules_of_their_own_share_their_settings_and_a_changed_setting_is_said():
    rows = made_rows("constraints", lambda game, variant: 1.0, games=("Hopper", "HalfCheetah"))
    found = chapter(find("constraints"), Rows(rows))
    assert not [note for note in found.notes if "different settings" in note]
    (returns,) = [table for table in found.tables if table.caption == "Returns"]
    names = [line[0] for line in returns.rows]
    assert "RLPD-GX, policy not averaged, Hopper" in names
    assert "RLPD-GX, policy not averaged, HalfCheetah" not in names  # it has no runs there
    for row in rows:
        if row["game"] == "Hopper":
            row["settings"] = row["settings"] | {"offline": "hopper.hdf5", "warm_start_updates": 10_000}
    assert not [n for n in chapter(find("constraints"), Rows(rows)).notes if "different settings" in n]
    rows[0]["settings"] = rows[0]["settings"] | {"utd": 8.0}
    (said,) = [n for n in chapter(find("constraints"), Rows(rows)).notes if "different settings" in n]
    assert said == "Rows of 'RLPD-GX' were made with 2 different settings."


@pytest.mark.parametrize(("learned", "word"), [(0.9, Word.CONFIRMED), (0.7, Word.NOT_CONFIRMED)])
def test_a_little_more_success_than_cloning_is_not_fifteen_points_more(learned, word):
    rows = made_rows("adroit", lambda game, variant: 1.0)
    for row in rows:
        row["success_rate"] = (learned if row["variant"] == "RLPD-GX" else 0.6) + 0.01 * row["seed"]
    words = {v.claim: v.word for v in find("adroit").show(Rows(rows)).verdicts}
    assert words["Learning beats cloning of the same demonstrations (pen)"] is Word.CONFIRMED
    assert words["Learning succeeds at least 15 percentage points more often than cloning (pen)"] is word
    assert words["The door opens in at least 80% of episodes"] is word
