"""`rlpd-gx measure` prints every measurement, as lines or as JSON."""

import json

from tiny_runs import tiny_run

from rlpd_gx.metrics import MEASUREMENTS, METRICS

FEW = ("--episodes", 1, "--states", 2, "--horizon", 5)


def test_everything_as_lines_and_as_json(command, tmp_path):
    run = tiny_run(tmp_path / "run", env="Probe/LureDiscrete-v0", rules="rlpd_gx.envs.probes:lure_mask")
    code, text, _ = command("measure", run, *FEW)
    assert code == 0
    assert "  pre_guard_violation_rate" in text
    assert "scores: not measured: only the 26 games" in text
    found = json.loads(command("measure", run, "--json", *FEW)[1])
    assert set(found) == {*METRICS, *MEASUREMENTS}
    assert found["ttfv"]["ttfv_median_with_guard"] is None  # JSON has no infinity
    chosen = json.loads(command("measure", run, "--metric", "ttfv", "--policy", "random", "--json", *FEW)[1])
    assert set(chosen) == {"ttfv"}


def test_a_mistake_is_one_sentence(command, tmp_path):
    code, _, error = command("measure", tmp_path, "--metric", "nothing")
    assert code == 2
    assert "there is no metric 'nothing'" in error
    code, _, error = command("measure", tmp_path)
    assert code == 2
    assert "holds no run" in error
