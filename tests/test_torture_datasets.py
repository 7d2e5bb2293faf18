"""A short slice of the attack on dataset files, and proof that the attack can tell."""

import os
import signal

import numpy as np
import pytest
from torture import datasets

from rlpd_gx.replay.offline.formats import dqn_replay


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return datasets.Bench(tmp_path_factory.mktemp("bench"))


def test_a_slice():
    rows = datasets.run(seconds=60, seed=1, most=112)
    assert [line for row in rows for line in row.broken] == []
    assert rows[0].tried > 90
    for row in rows[5:]:
        assert row.tried, row.promise


def test_a_reader_that_does_not_read_to_the_end_is_caught(bench, monkeypatch):
    """Without the end of the gzip stream its checksum is never seen."""
    monkeypatch.setattr(dqn_replay._GzipRows, "finish", lambda reader: None)
    found = [bench.trial("dqn_replay", seed) for seed in range(80)]
    assert any(outcome.result == "accepted" and not outcome.right for outcome in found)


def test_a_traceback_a_crash_a_hang_and_memory_are_caught(bench, monkeypatch):
    monkeypatch.setattr(datasets, "TRIAL_SECONDS", 1)

    def result(broken):
        monkeypatch.setattr(datasets, "content", broken)
        worker = datasets.Worker(bench)
        try:
            return worker.trial("csv", 0).result
        finally:
            worker.stop()

    def crash(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(*_):
        while True:
            pass

    assert result(lambda *_: {}["missing"]) == "raised"
    assert result(crash) == "died"
    assert result(hang) == "hung"
    assert result(lambda *_: np.ones(datasets.MEMORY_BYTES)) == "memory"
