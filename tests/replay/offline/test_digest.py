"""`OfflineDataset.digest`: any element of any column changes it, and nothing else does."""

from dataclasses import replace

import numpy as np
import pytest
from torture._writers import steps

from rlpd_gx.replay.offline import load
from rlpd_gx.replay.timeline import Timeline


@pytest.fixture
def data(tmp_path):
    columns = steps([3, 2], ["terminal", "timeout"])
    columns |= {
        "proposed_actions": columns["actions"] / 2,
        "margins": np.arange(5.0),
        "unsafe_events": np.arange(5) == 1,
        "safe_sets": np.arange(10, dtype=np.float32).reshape(5, 2),
        "iteration": np.arange(5),
    }
    np.savez(tmp_path / "a.npz", **columns)
    return load(tmp_path / "a.npz")


def changed(data, name, place):
    columns = dict(data.timeline.columns())
    column = columns[name] = columns[name].copy()
    flat = column.reshape(-1).view(np.uint8)
    flat[place * column.itemsize] ^= 1
    return replace(data, timeline=Timeline.from_columns(columns))


def test_every_element_of_every_column_counts(data):
    right = data.digest()
    seen = {right}
    for name, column in data.timeline.columns().items():
        for place in range(column.size):
            seen.add(changed(data, name, place).digest())
    assert len(seen) == 1 + sum(column.size for column in data.timeline.columns().values())
    assert data.digest() == right


def test_names_types_shapes_and_meaning_count(data):
    line, seen = data.timeline.columns(), {data.digest()}
    others = [
        {**line, "extras/iteration": line["extras/iteration"].astype(np.int32)},
        {**line, "extras/iteration": line["extras/iteration"][:, None]},
        {**{k: v for k, v in line.items() if k != "extras/iteration"}, "extras/it": line["extras/iteration"]},
        {**line, "extras/another": np.zeros(len(data.timeline), np.int64)},
    ]
    seen |= {replace(data, timeline=Timeline.from_columns(columns)).digest() for columns in others}
    seen.add(replace(data, rules_fingerprint="other").digest())
    seen.add(replace(data, safe_set_spec={"kind": "box", "dimension": 1}).digest())
    assert len(seen) == 7


def test_where_the_columns_lie_does_not_count(data, tmp_path):
    columns = {name: np.asfortranarray(column) for name, column in data.timeline.columns().items()}
    assert replace(data, timeline=Timeline.from_columns(columns)).digest() == data.digest()
    assert load(data.save(tmp_path / "kept")).digest() == data.digest()
