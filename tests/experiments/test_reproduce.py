"""Every experiment of the paper, end to end on the real emulator, in its smallest form."""

import json
import subprocess
import sys

import pytest

from rlpd_gx.experiments.experiment import SCALES, Request
from rlpd_gx.experiments.offline import data_for
from rlpd_gx.experiments.reproduced import NAMES, find

RUN = [name for name in NAMES if name != "adroit"]  # it needs demonstrations


def reproduce(*words):
    command = [sys.executable, "-m", "rlpd_gx", "reproduce", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out = tmp_path_factory.mktemp("smoke")
    done = reproduce("all", "--scale", "smoke", "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout, done.stderr


def rows_of(out, name):
    return [json.loads(line) for line in (out / "results" / f"{name}.jsonl").read_text().splitlines()]


def test_every_run_has_one_row_with_all_that_it_needs(smoke):
    out, said, _ = smoke
    for name in RUN:
        rows = rows_of(out, name)
        assert len({row["fingerprint"] for row in rows}) == len(rows) > 0
        for row in rows:
            assert row["command"].startswith("rlpd-gx train")
            assert row["versions"]["torch"]
            assert row["machine"]
            assert row["date"]
            assert row["training"]["steps"] > 0
            assert row["settings"]["env"]
            assert len(json.dumps(row)) < 20_000
        assert find(name).title in said
    assert "impossible as stated: Guardian > DTS > DSS in every game" in said


def test_help_names_every_experiment():
    said = " ".join(reproduce("--help").stdout.split())
    assert f"{', '.join(NAMES)}, or all" in said


def test_no_violation_in_any_guarded_run(smoke):
    out, _, _ = smoke
    counted = executed = 0
    for name in RUN:
        for row in rows_of(out, name):
            if row["enforces"]:
                assert row["outside"], f"not counted: {row['command']}"
                counted += 1
                for where in ("training", "evaluation"):
                    executed += row["outside"][where]["executed"]
                    assert row["outside"][where]["violations"] == 0, row["command"]
    assert counted >= 10
    assert executed >= 1_000


def test_experiments_share_their_runs(smoke):
    out, _, progress = smoke
    folders = {path.parent for path in out.glob("*/result.json")}
    rows = sum(len(rows_of(out, name)) for name in RUN)
    assert len(folders) < rows
    assert f"{len(folders)} runs to do, 0 have rows" in progress


def test_a_second_time_runs_nothing(smoke):
    out, _, _ = smoke
    before = {name: rows_of(out, name) for name in RUN}
    done = reproduce("all", "--scale", "smoke", "--out", out)
    assert done.returncode == 0
    assert "started" not in done.stderr
    assert {name: rows_of(out, name) for name in RUN} == before


def test_measurements_are_made_or_say_why_not(smoke):
    out, _, _ = smoke
    for name in RUN:
        request = Request(SCALES["smoke"], data_for(SCALES["smoke"], None, out))
        wanted = {planned.fingerprint: planned.measure for planned in find(name).plan(request)}
        found = {row["fingerprint"]: row["measured"] for row in rows_of(out, name)}
        assert wanted.keys() <= found.keys()
        for fingerprint, measure in wanted.items():
            assert set(measure) == set(found[fingerprint])


def test_mistakes_are_one_sentence(tmp_path):
    for words, says in (
        (["banana"], "there is no experiment 'banana'"),
        (["ablation", "--games", "Chess"], "there is no such game"),
        (["constraints", "--games", "Pong"], "the tasks of constraints are"),
        (["ablation", "--data", tmp_path / "none"], "there is no such folder"),
        (["ablation", "--address", "auto"], "give --engine ray too"),
    ):
        done = reproduce(*words, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
