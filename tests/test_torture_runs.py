"""A short slice of the attacks on runs, and proof that they can tell."""

from pathlib import Path

import pytest
from torture import kills, resumes, rules
from torture._runs import (
    DONE,
    KILLED,
    REFUSED,
    SETTINGS,
    Bench,
    Fault,
    differences,
    go_on,
    half,
    in_process,
    start,
)

from rlpd_gx.loop.resume import resume

KIND = sorted(SETTINGS)[0]


@pytest.mark.parametrize(("part", "seconds"), [(kills, 8), (resumes, 2), (rules, 4)])
def test_a_slice(part, seconds):
    rows = part.run(seconds, seed=2)
    assert [line for row in rows for line in row.broken] == []
    assert rows[0].tried


@pytest.fixture(scope="module")
def bench():
    with Bench(seed=0) as made:
        yield made


def forgetful(folder: Path) -> list[str]:
    """Resume a run with one weight off by a little."""
    trainer, saver, notes = resume(folder)
    next(iter(trainer.learner.policy.actor.parameters())).data.view(-1)[0] += 1e-6
    trainer.train(saver)
    return notes


def careless(folder: Path) -> list[str]:
    """Fail without a sentence."""
    raise ValueError("nobody expects this")


def test_a_resume_that_is_not_exact_is_caught(bench):
    for work, exact in ((go_on, True), (forgetful, False)):
        folder = bench.folder / work.__name__
        in_process(half, folder, KIND, 14)
        assert in_process(work, folder).code == DONE
        assert ("tensors" not in differences(folder, bench.whole[KIND])) == exact


def test_faults_happen_where_they_should(bench):
    folder = bench.folder / "killed"
    assert in_process(start, folder, KIND, fault=Fault(bench.calls[KIND] // 2, "kill")).code == KILLED
    full = in_process(go_on, folder, fault=Fault(5, "full"))
    assert full.code == REFUSED
    assert "No space left" in full.said
    crash = in_process(careless, folder)
    assert kills._not_a_sentence(crash.code, crash.said) == "exit code 4: ValueError: nobody expects this"
