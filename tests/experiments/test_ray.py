"""A real Ray cluster of two nodes on this machine; one is killed in the middle of a sweep."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("ray")

SCRIPT = """
import json, sys, threading, time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from rlpd_gx.experiments.engines import Processes, Ray
from rlpd_gx.experiments.plan import grid
from rlpd_gx.experiments.rows import Table
from rlpd_gx.experiments.sweep import Sweep, run

SMALL = dict(
    env="CartPole-v1", steps=2_000, learning_starts=50, utd=1.0, hidden_sizes=(16, 16), batch_size=16, ensemble_size=2,
    evaluation_episodes=1, evaluate_every=0, checkpoint_every=100, log_every=100,
)
out, killing = Path(sys.argv[1]), sys.argv[2] == "kill"


def sweep():
    return Sweep("cartpole", grid(["seed=0..3"], SMALL), out, Table(out / "results.jsonl"))


if __name__ == "__main__":
    if not killing:
        sys.exit(bool(run([sweep()], Processes(2))))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()

    def kill():
        # once both nodes have a run with a checkpoint behind its first
        while len([p for p in out.glob("*/metrics.jsonl") if p.stat().st_size]) < 2:
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)
        print("killed a node with", len(Table(out / "results.jsonl").rows()), "runs done", flush=True)

    threading.Thread(target=kill, daemon=True).start()
    engine = Ray(cluster.address)
    assert engine.slots == 2
    failed = run([sweep()], engine)
    ray.shutdown()
    cluster.shutdown()
    sys.exit(bool(failed))
"""


def outcome(folder):
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    same = ("fingerprint", "returns", "curve", "curves", "training", "evaluation")
    assert len(rows) == len({row["fingerprint"] for row in rows}) == 4
    return {row["seed"]: {name: row[name] for name in same} for row in rows}


@pytest.mark.long
def test_a_node_that_dies_changes_nothing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for mode in ("kill", "whole"):
        done = subprocess.run(
            [sys.executable, script, tmp_path / mode, mode], capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("killed a node with 0 runs done" in done.stdout) == (mode == "kill"), done.stdout
    resumed = [path for path in tmp_path.glob("kill/*/output.txt") if "resuming at step" in path.read_text()]
    assert len(resumed) == 1
    assert outcome(tmp_path / "kill") == outcome(tmp_path / "whole")
