"""DQN-Replay folders, written as Dopamine lays them out: gzipped .npy, 3 blank rows before each episode."""

import numpy as np
import pytest
from torture._writers import stream, write_checkpoint

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import load
from rlpd_gx.replay.offline.formats import dqn_replay


def test_blank_rows_go_and_episodes_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(dqn_replay, "CHUNK_ROWS", 4)  # so that episodes cross chunks
    rows = stream([5, 3, 4])
    cut = {name: column[:-2] for name, column in rows.items()}
    data = load(write_checkpoint(tmp_path / "replay_logs", cut))
    line = data.timeline
    line.check_episodes()
    assert data.format == "dqn_replay"
    assert line.observation[:, 0, 0].tolist() == [1, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10]
    assert line.reward.tolist() == [1, 2, 3, 4, 5, 0, 6, 7, 8, 0, 9, 0]
    assert line.executed_action.tolist() == [1, 2, 3, 4, 5, 0, 6, 7, 8, 0, 9, 0]
    assert np.flatnonzero(line.terminated).tolist() == [4, 8]
    assert np.flatnonzero(line.truncated).tolist() == [10]
    assert len(data.findings) == 2


def test_an_episode_goes_on_in_the_next_file(tmp_path):
    rows = stream([5, 3])
    for number, part in enumerate((slice(0, 6), slice(6, None))):
        write_checkpoint(tmp_path / "logs", {name: column[part] for name, column in rows.items()}, number)
    assert load(tmp_path / "logs").timeline.reward.tolist() == [1, 2, 3, 4, 5, 0, 6, 7, 8, 0]
    write_checkpoint(tmp_path / "logs", stream([2]), 7)
    some = load(tmp_path / "logs", options={"checkpoints": [0, 7]}).timeline
    assert some.reward.tolist() == [1, 2, 0, 1, 2, 0]
    with pytest.raises(GxError, match=r"ckpt\.4\.gz"):
        load(tmp_path / "logs", options={"checkpoints": [4]})


@pytest.mark.usefixtures("nothing_cached")
def test_bad_folders(tmp_path):
    rows = stream([50])
    folder = write_checkpoint(tmp_path / "logs", rows)
    file = folder / "$store$_reward_ckpt.0.gz"
    whole = file.read_bytes()

    file.write_bytes(whole[:-40])
    with pytest.raises(GxError, match=r"reward_ckpt\.0\.gz: 'reward', row 0: the gzip stream is cut short"):
        load(folder)
    file.unlink()
    with pytest.raises(GxError, match=r"reward_ckpt\.0\.gz: 'reward': is missing"):
        load(folder)
    write_checkpoint(folder, {"reward": rows["reward"][:-1]})
    with pytest.raises(GxError, match=r"'reward', row 52: has 52 rows where observation has 53"):
        load(folder)
    write_checkpoint(folder, {"reward": np.where(rows["reward"] == 7, np.nan, rows["reward"])})
    with pytest.raises(GxError, match=r"ckpt\.0\.gz: 'rewards', row 9: is NaN"):
        load(folder)
    write_checkpoint(folder, {"reward": np.array([None] * 53)})
    with pytest.raises(GxError, match="pickle"):
        load(folder)
