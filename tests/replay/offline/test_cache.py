"""The cache: quick the second time, keyed by content and choices, never half written; the registry."""

import os

import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import ActionRange, cache, formats, load, loading


def write(path, steps=5, **change):
    columns = {
        "observations": np.arange(steps, dtype=np.float32)[:, None],
        "actions": np.zeros((steps, 1), np.float32),
        "rewards": np.arange(steps, dtype=np.float32),
        "terminals": np.arange(steps) == steps - 1,
    }
    np.savez(path, **{**columns, **change})
    return path


def folders(root):
    return sorted(entry.name for entry in root.iterdir())


def test_the_second_load_reads_nothing_of_the_source(tmp_path, cache_root, monkeypatch):
    path = write(tmp_path / "a.npz", steps=50_000)
    first = load(path)
    monkeypatch.setattr(formats, "read", None)  # would fail if it were asked again
    second = load(path)
    for name, column in first.timeline.columns().items():
        assert np.array_equal(column, second.timeline.columns()[name], equal_nan=name == "margin")
    assert not second.timeline.observation.flags.owndata  # mapped, not read
    assert not second.timeline.observation.flags.writeable
    assert len(folders(cache_root)) == 1


def test_a_long_conversion_shows_its_progress(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "a.npz", terminals=np.ones(5, bool))
    load(path, root=tmp_path / "quiet")
    assert capsys.readouterr().err == ""  # no terminal, no bar
    monkeypatch.setenv("FORCE_COLOR", "1")
    load(path, root=tmp_path / "loud")
    assert "Reading a.npz" in capsys.readouterr().err


def test_content_and_choices_are_the_key(tmp_path, cache_root):
    path = write(tmp_path / "a.npz")
    assert load(path).steps == 5
    write(path, steps=6)
    assert load(path).steps == 6
    load(path, time_limit_steps=3)
    assert len(folders(cache_root)) == 3
    os.rename(path, tmp_path / "b.npz")
    load(tmp_path / "b.npz")
    assert len(folders(cache_root)) == 3  # the same content under another name


def test_a_conversion_that_stops_leaves_nothing(tmp_path, cache_root, monkeypatch):
    path = write(tmp_path / "a.npz", terminals=np.ones(5, bool))
    real = loading.rows_of
    seen = []

    def fails_at_the_third(episode):
        seen.append(episode)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(episode)

    monkeypatch.setattr(loading, "rows_of", fails_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        load(path)
    assert folders(cache_root) == []
    monkeypatch.setattr(loading, "rows_of", real)
    assert load(path).episodes == 5


def test_a_damaged_cache_is_said(tmp_path, cache_root):
    path = write(tmp_path / "a.npz")
    (file,) = [load(path).folder / "reward.bin"]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(GxError, match="convert again"):
        load(path)


def test_a_saved_folder_opens_by_itself(tmp_path):
    data = load(write(tmp_path / "a.npz")).where("reward >= 2")
    data.save(tmp_path / "kept")
    again = load(tmp_path / "kept")
    assert again.timeline.reward[again.timeline.is_step].tolist() == [2, 3, 4]
    assert (again.name, again.format, again.findings) == (data.name, data.format, data.findings)
    with pytest.raises(GxError, match="exists already"):
        data.save(tmp_path / "kept")
    meta = tmp_path / "kept" / "meta.json"
    whole = meta.read_text()
    meta.write_text(whole.replace('"<f4"', '"|O"', 1))
    with pytest.raises(GxError, match="checksum"):
        load(tmp_path / "kept")
    meta.write_text(whole.replace(f'"rlpd_gx_dataset": {cache.LAYOUT_VERSION}', '"rlpd_gx_dataset": 0'))
    with pytest.raises(GxError, match="layout 0"):
        load(tmp_path / "kept")


def test_a_converted_folder_takes_no_choices_of_a_reader(tmp_path):
    folder = load(write(tmp_path / "a.npz")).save(tmp_path / "kept")
    for choice in (
        {"format": "csv"},
        {"clip_actions": True},
        {"time_limit_steps": 3},
        {"options": {"mapping": {"rewards": "r"}}},
    ):
        with pytest.raises(
            GxError, match=r"kept: is converted already, so \w+ cannot be applied; convert its source"
        ):
            load(folder, **choice)
    assert load(folder, options={}, clip_actions=False).steps == load(folder).steps


def test_the_ids_of_a_converted_folder_are_checked(tmp_path):
    data = load(write(tmp_path / "a.npz", actions=np.array([0, 1, 4, 1, 0])))
    folder = data.save(tmp_path / "kept")
    assert load(folder, actions=ActionRange(count=5)).steps == data.steps
    few = ActionRange(count=2)
    with pytest.raises(
        GxError, match=r"kept: 'executed_action', row 2: is 4, but the environment has actions 0 to 1"
    ):
        load(folder, actions=few)
    assert any("row 2: is 4" in finding for finding in load(folder, actions=few, strict=False).findings)
    with pytest.raises(GxError, match=r"'actions' has shape \(\) in every row, the environment takes \(1,\)"):
        load(folder, actions=ActionRange(low=np.array([0.0]), high=np.array([1.0])))


def test_episodes_must_agree(tmp_path):
    with cache.new_folder(tmp_path / "x") as writer:
        writer.append({"a": np.zeros((2, 3), np.float32)}, "file: episode at row 0")
        with pytest.raises(GxError, match=r"row 2.*'a' is float32"):
            writer.append({"a": np.zeros((2, 4), np.float32)}, "file: episode at row 2")
        with pytest.raises(GxError, match=r"row 2.*fields b"):
            writer.append({"a": np.zeros((2, 3)), "b": np.zeros(2)}, "file: episode at row 2")
        writer.finish({})
