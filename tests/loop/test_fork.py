"""A fork begins with what a run had at a step, and continues with other settings."""

import json
from pathlib import Path

import pytest
from tiny_runs import SMALL

import rlpd_gx as gx

LINE = {**SMALL, "env": "Pendulum-v1", "progress": False, "checkpoint_every": 20, "log_every": 20}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> gx.Run:
    out = tmp_path_factory.mktemp("source") / "run"
    return gx.train(**{**LINE, "steps": 240}, out=out)


def rows(run: gx.Run, first: int, last: int) -> list[str]:
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if first < json.loads(line)["step"] <= last]


def test_quarters_and_the_newest_are_kept(source: gx.Run) -> None:
    steps = sorted(int(path.name.rpartition("-")[2]) for path in (source.folder / "checkpoints").iterdir())
    assert steps == [60, 120, 180, 220, 240]


def test_without_other_settings_a_fork_repeats_the_run(source: gx.Run, tmp_path: Path) -> None:
    again = source.fork(120, out=tmp_path / "again", progress=False)
    assert again.result["evaluation"] == source.result["evaluation"]
    assert rows(again, 0, 240) == rows(source, 0, 240)


def test_settings_change_from_the_step_on(source: gx.Run, tmp_path: Path) -> None:
    changed = source.fork(
        60, out=tmp_path / "changed", learning_rate=1e-2, temperature=0.5, steps=140, progress=False
    )
    assert changed.result["steps"] == 140
    assert rows(changed, 0, 60) == rows(source, 0, 60)
    assert rows(changed, 60, 120) != rows(source, 60, 120)
    written = json.loads((changed.folder / "config.json").read_text())
    assert written["forked_from"] == f"{source.folder}@60"
    assert written["learning_rate"] == 1e-2
    first = json.loads(rows(changed, 60, 80)[0])
    assert abs(first["alpha"] - 0.5) < 0.1
    longer = changed.resume(steps=160, progress=False)  # a fork is a run like any other
    assert longer.result["steps"] == 160


def test_another_seed_shares_nothing_random(source: gx.Run, tmp_path: Path) -> None:
    one, two = (source.fork(60, out=tmp_path / str(n), seed=n, steps=120, progress=False) for n in (7, 8))
    assert rows(one, 60, 120) != rows(two, 60, 120) != rows(source, 60, 120)


@pytest.mark.filterwarnings("ignore:rule .* is not batched")
def test_the_guard_may_be_another_one(tmp_path: Path) -> None:
    gentle = gx.bounds_rule(lambda observation: ([-1.0], [1.0]), name="gentle")
    run = gx.train(**(LINE | {"steps": 40}), rules=gentle, out=tmp_path / "run")
    for guard in ("none", "shield", "replace"):
        other = run.fork(20, guard=guard, steps=50, out=tmp_path / guard, progress=False)
        assert (other.result["guard"].partition("=")[0], other.result["steps"]) == (guard, 50)
        assert (other.result["training"]["forbidden_executed"] > 0) == (guard == "none")


def test_a_fork_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    full = gx.train(**{**LINE, "steps": 40, "buffer_size": 30}, out=tmp_path / "full")
    out = tmp_path / "out"
    for begun in (False, True):  # also in a folder that holds other files
        if begun:
            out.mkdir()
            (out / "notes.txt").write_text("mine")
        with pytest.raises(gx.GxError, match="rows"):
            full.fork(40, out=out, buffer_size=50, steps=60, progress=False)
        assert [path.name for path in out.iterdir()] == ["notes.txt"] if begun else not out.exists()
    again = full.fork(40, out=out, steps=60, progress=False)
    assert again.result["steps"] == 60


@pytest.mark.parametrize(
    ("step", "settings", "sentence"),
    [
        (70, {}, "no checkpoint of step 70; there are: 60, 120, 180, 220, 240"),
        (240, {}, "was at step 240 then; give more --steps"),
        (60, {"hidden_sizes": (8,)}, "leave out --hidden-sizes"),
        (60, {"env": "CartPole-v1"}, "leave out --env"),
        (60, {"utdd": 1}, "did you mean utd?"),
    ],
)
def test_what_cannot_be_forked_is_said(
    source: gx.Run, tmp_path: Path, step: int, settings: dict, sentence: str
) -> None:
    with pytest.raises(gx.GxError, match=sentence.replace("?", r"\?")):
        source.fork(step, out=tmp_path / "never", progress=False, **settings)
    assert not (tmp_path / "never").exists()
