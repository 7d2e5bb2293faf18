import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.replay.storage import Storage, nbytes, record_dtype
from rlpd_gx.replay.timeline import Layout, Timeline

ATARI = Layout(np.dtype((np.uint8, (84, 84))), np.dtype(np.int64), np.dtype((np.uint8, (18,))))
ROBOT = Layout(
    {"joints": np.dtype((np.float64, (17,))), "goal": np.dtype(np.float32)},
    np.dtype((np.float32, (6,))),
    np.dtype((np.float32, (12,))),
)


def numbered(layout: Layout, rows: int) -> Timeline:
    """One episode in plain columns, its fields numbered by column."""
    flat = {name: np.empty((rows, *dtype.shape), dtype.base) for name, dtype in layout.columns().items()}
    for value, column in enumerate(flat.values(), start=1):
        column.view(np.uint8)[...] = 1 if column.dtype == np.bool_ else value
    flat["is_step"][-1] = False
    flat["terminated"][:] = flat["truncated"][:] = False
    flat["episode_step"][:] = np.arange(rows)
    return Timeline.from_columns(flat)


def test_a_million_atari_steps_fit_in_8_gigabytes():
    episodes = 10_000  # each takes one more row
    assert nbytes(ATARI, 1_000_000 + episodes) < 8e9


@pytest.mark.parametrize("layout", [ATARI, ROBOT], ids=["pixels", "dict"])
def test_rows_lie_in_one_allocation_of_the_bytes_it_says(layout):
    storage = Storage.allocate(layout, 1000)
    assert storage.timeline.layout == layout
    columns = storage.timeline.columns().values()
    assert not any(column.any() for column in columns)
    bounds = [np.lib.array_utils.byte_bounds(column) for column in columns]
    assert max(high for _, high in bounds) - min(low for low, _ in bounds) <= nbytes(layout, 1000)
    # exact rows: alignment pads a record to a multiple of 8 bytes, and nothing else is spent
    exact = sum(dtype.itemsize for dtype in layout.columns().values())
    assert nbytes(layout, 1000) <= 1000 * (exact + 7) + 64


@pytest.mark.parametrize("layout", [ATARI, ROBOT], ids=["pixels", "dict"])
def test_columns_do_not_overlap_and_torch_can_view_them(layout):
    import torch

    columns = Storage.allocate(layout, 7).timeline.columns()
    plain = numbered(layout, 7).columns()
    for name, column in columns.items():
        column[...] = plain[name]
    for name, column in columns.items():
        np.testing.assert_array_equal(column, plain[name])
        assert torch.from_numpy(column).data_ptr() == column.ctypes.data  # taken as it is, not copied


@pytest.mark.parametrize("layout", [ATARI, ROBOT], ids=["pixels", "dict"])
def test_finished_data_is_packed_unchanged_and_frames_are_not_copied(layout):
    plain = numbered(layout, 9)
    storage = Storage.of(plain)
    for name, column in storage.timeline.columns().items():
        np.testing.assert_array_equal(column, plain.columns()[name])
    shared = np.shares_memory(
        storage.timeline.columns()[next(iter(layout.columns()))],
        plain.columns()[next(iter(layout.columns()))],
    )
    assert shared == (layout is ATARI)


def test_only_large_observations_lie_apart():
    assert "observation" not in record_dtype(ATARI).names
    assert {"observation/joints", "observation/goal"} <= set(record_dtype(ROBOT).names)


def test_memory_mapped_file_keeps_what_is_written(tmp_path):
    timeline = Storage.allocate(ATARI, 5, tmp_path / "rows.bin").timeline
    timeline.observation[3] = 7
    assert (tmp_path / "rows.bin").stat().st_size == nbytes(ATARI, 5)
    again = np.memmap(tmp_path / "rows.bin", np.uint8, "r")
    assert (again[3 * 7056 : 4 * 7056] == 7).all()


def test_frames_that_are_not_contiguous_are_refused():
    flat = numbered(ATARI, 4).columns()
    flat["observation"] = np.zeros((8, 84, 84), np.uint8)[::2]
    with pytest.raises(GxError, match="column observation is not contiguous"):
        Storage.of(Timeline.from_columns(flat))
