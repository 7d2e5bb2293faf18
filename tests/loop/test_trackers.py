"""Where the numbers of a run go beside its own files; all sinks use the same names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import SMALL

import rlpd_gx as gx

TINY = {**SMALL, "env": "CartPole-v1", "steps": 30, "progress": False}
SCRIPT = "import json, sys, rlpd_gx as gx; gx.train(**json.loads(sys.argv[1]))"


def test_tensorboard_has_scalars_and_hyperparameters(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    run = gx.train(**TINY, out=tmp_path / "run")
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert {"eval/return", "time/steps_per_second", "train/q_mean"} <= set(events.Tags()["scalars"])
    data = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    stored = HParamsPluginData.FromString(data).session_start_info.hparams
    assert (stored["env"].string_value, stored["steps"].number_value) == ("CartPole-v1", 30)
    assert len(list((run.folder / "tensorboard").iterdir())) == 1


@pytest.mark.long
def test_weights_and_biases_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    (tmp_path / "home").mkdir()
    asked = json.dumps(TINY | {"out": str(tmp_path / "run"), "track": ["wandb"]})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, asked],
        env=os.environ | {"WANDB_MODE": "offline", "HOME": str(tmp_path / "home"), "WANDB_SILENT": "true"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (stored,) = (tmp_path / "run").rglob("*.wandb")
    content = stored.read_bytes()
    for name in (b"eval/return", b"time/steps_per_second", b"CartPole-v1"):
        assert name in content


def test_an_unknown_or_missing_service_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(gx.GxError, match="--track takes wandb or trackio, not 'mlflow'"):
        gx.train(**TINY, out=tmp_path / "run", track=["mlflow"])
    monkeypatch.setitem(sys.modules, "trackio", None)
    monkeypatch.setattr("rlpd_gx.loop.watchers.find_spec", lambda name: None)
    with pytest.raises(
        gx.GxError, match=r"Trackio is not installed; add it with: pip install 'rlpd-gx\[trackio\]'"
    ):
        gx.train(**TINY, out=tmp_path / "run", track=["trackio"])
    assert not (tmp_path / "run").exists()
