"""Offline data as the samplers see it."""

import numpy as np
import pytest
from torture._writers import transition, write_shard

from rlpd_gx.errors import GxError
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.offline import load
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.samplers import Span, Stride, Uniform
from rlpd_gx.replay.timeline import Layout


@pytest.mark.parametrize("sampler", [Uniform(), Stride(width=4), Span()])
def test_shuffled_transitions_give_exactly_their_own_stacks(tmp_path, sampler):
    messages = [transition(t) for t in (30, 10, 11, 20, 50)]
    line = load(write_shard(tmp_path / "shard", messages)).timeline
    line.check_episodes()
    hybrid = Hybrid(
        online=None, offline=line, sampler=sampler, generator=np.random.default_rng(0), batch_size=64, stack=4
    )
    batch = hybrid.sample(online_ratio=0.0, interval=2 if isinstance(sampler, Span) else 1)
    t = line.reward[batch.row[0]]
    assert set(t) == {10, 11, 20, 30, 50}
    for back in range(4):
        assert (batch.observation[0, :, 3 - back, 0, 0] == t - back).all()
        assert (batch.next_observation[0, :, 3 - back, 0, 0] == t + batch.span_length[0] - back).all()


def test_rows_that_only_fill_stacks_must_come_first(tmp_path):
    line = load(write_shard(tmp_path / "shard", [transition(10), transition(11)])).timeline
    line.check_episodes()
    columns = dict(line.columns())
    columns["is_step"] = line.is_step.copy()
    columns["is_step"][:] = [False, False, True, False, True, False]  # one in the middle
    with pytest.raises(GxError, match="row 4"):
        type(line).from_columns(columns).check_episodes()


def test_data_takes_the_types_of_a_ring(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        observations=np.arange(5, dtype=np.float32)[:, None],
        actions=np.zeros((5, 1)),
        rewards=np.arange(5.0),
        terminals=np.arange(5) == 4,
    )
    data = load(tmp_path / "a.npz")
    layout = Layout(
        observation=np.dtype((np.float64, (1,))),
        action=np.dtype((np.float32, (1,))),
        safe_set=np.dtype((np.uint8, (0,))),
    )
    offline = data.in_layout(layout).timeline
    assert offline.layout == layout
    ring = Ring(layout, capacity=16)
    Hybrid(online=ring, offline=offline, sampler=Uniform(), generator=np.random.default_rng(0))
    wider = Layout(np.dtype((np.float64, (2,))), layout.action, layout.safe_set)
    with pytest.raises(GxError, match="'observation' is"):
        data.in_layout(wider)
