"""Safe sets for offline rows, and the audit that counts them."""

import json

import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.replay.extent import Extent
from rlpd_gx.replay.offline import ActionRange, as_online_rows, audit, executed_margins, load, with_safe_sets
from rlpd_gx.replay.offline.audit import as_table
from rlpd_gx.replay.samplers import Span
from rlpd_gx.safe_sets import Box, Intersection, Mask, Polytope, ProductMask, decode

ALL = np.array([7], np.uint8)


@pytest.fixture
def data(tmp_path):
    """Two episodes of 3 and 2 steps; observation and action say the step."""
    np.savez(tmp_path / "a.npz", **columns())
    return load(tmp_path / "a.npz")


def columns():
    return {
        "observations": np.array([[0], [1], [2], [0], [1]], np.float32),
        "next_observations": np.array([[1], [2], [3], [1], [2]], np.float32),
        "actions": np.array([[1], [2], [3], [4], [5]], np.float32),
        "rewards": np.arange(5.0),
        "terminals": np.array([0, 0, 1, 0, 0]),
        "wind": np.arange(5.0) / 10,
    }


def test_codes_are_computed_in_batches_with_the_context(data):
    seen = []

    def encode(states, context):
        seen.append(len(states))
        assert context["extras"]["wind"].shape == (len(states),)
        assert (context["episode_step"] == states[:, 0]).all()
        return np.concatenate([states, context["previous_action"]], axis=1).astype(np.uint8)

    made = with_safe_sets(data, encode, "rules-1", batch_rows=3)
    assert seen == [3, 3, 1]
    # state, action before it; nothing before the first row of an episode
    assert made.timeline.safe_set.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3], [0, 0], [1, 4], [2, 5]]
    assert made.rules_fingerprint == "rules-1"

    def never(states, context):
        raise AssertionError("the cache was not used")

    again = with_safe_sets(data, never, "rules-1")
    assert (again.timeline.safe_set == made.timeline.safe_set).all()
    with pytest.raises(AssertionError, match="cache was not used"):
        with_safe_sets(data, never, "rules-2")


def test_codes_in_the_file_are_taken_only_from_the_same_rules(tmp_path):
    codes = {
        "safe_sets": np.array([[1], [2], [3], [5], [6]], np.uint8),
        "next_safe_sets": np.array([[2], [3], [4], [6], [7]], np.uint8),
    }
    codes = {name: Mask(column % 2 == np.arange(3)).encode() for name, column in codes.items()}
    spec = json.dumps(Mask(np.ones((1, 3), bool)).spec)
    np.savez(tmp_path / "a.npz", **columns(), **codes, rules_fingerprint="rules-1", safe_set_spec=spec)
    data = load(tmp_path / "a.npz")
    made = with_safe_sets(data, None, "rules-1")
    first = decode(made.timeline.safe_set, made.safe_set_spec).allowed[:, 0]
    assert first.tolist() == [False, True, False, True, False, True, False]
    with pytest.raises(GxError, match=r"other rules .rules-1, not rules-2"):
        with_safe_sets(data, None, "rules-2")


def boxes(states):
    return Box(states - 1, states + 1).encode()


def flat_sets(path, **more):
    """A file with codes at s but not at s'; observation and code say the step."""
    found = columns()
    sets = {"safe_sets": boxes(found["observations"]), "rules_fingerprint": "rules-1"}
    np.savez(path, **found, **sets, **more)
    return path


def test_codes_that_nobody_can_read_are_computed_again(tmp_path):
    data = load(flat_sets(tmp_path / "a.npz"))
    with pytest.raises(GxError, match="does not tell how to read its codes"):
        with_safe_sets(data, None, "rules-1")
    made = with_safe_sets(data, lambda states, context: Box(states - 9, states - 8), "rules-1")
    assert made.safe_set_spec == {"kind": "box", "dimension": 1}
    assert (executed_margins(made) < 0)[made.timeline.is_step].all()  # a penalty has something to price
    with pytest.raises(GxError, match=r"a\.npz: 'safe_set_spec': cannot be read"):
        load(flat_sets(tmp_path / "a.npz", safe_set_spec="{"))


def test_rows_become_as_the_replay_buffer_stores_its_own(tmp_path):
    """Forbidden actions have negative margins, which end spans; an empty mask holds the action that ran, alone."""
    np.savez(tmp_path / "a.npz", **columns() | {"actions": np.array([0, 1, 2, 1, 0])})
    masks = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 1], [1, 1, 1]])
    tested = np.ones((7, 3))
    tested[5, 0] = 0  # whether the last action is allowed is not known
    made = with_safe_sets(load(tmp_path / "a.npz"), lambda *_: Mask(masks, tested), "rules-1")
    assert np.isnan(made.timeline.margin).all()
    line = as_online_rows(made).timeline
    np.testing.assert_array_equal(line.margin, [1, -1, -1, np.nan, 1, np.nan, np.nan])
    now = decode(line.safe_set, made.safe_set_spec)
    masks[[2, 3]] = [0, 0, 1]  # row 3 is the last state of an episode: the action before it
    assert (now.allowed == masks).all()
    span = Span().draw(Extent.whole(line), (1, 99), 3, 1, np.random.default_rng(0))
    assert dict(zip(span.rows[0].tolist(), span.length[0].tolist(), strict=True)) == {
        0: 1,
        1: 1,
        2: 1,
        4: 2,
        5: 1,
    }


def test_actions_may_be_numbered_from_any_start(tmp_path):
    """Where no action ran, the padding is not one: it may lie outside the mask."""
    np.savez(tmp_path / "a.npz", **columns() | {"actions": np.array([5, 6, 7, 6, 5])})
    allowed = np.array([[1, 0, 1]] * 7)
    made = with_safe_sets(load(tmp_path / "a.npz"), lambda *_: Mask(allowed, start=5), "rules-1")
    np.testing.assert_array_equal(as_online_rows(made).timeline.margin, [1, -1, 1, np.nan, -1, 1, np.nan])


def test_a_margin_in_the_file_counts_where_it_is_lower(tmp_path):
    np.savez(tmp_path / "a.npz", **columns() | {"margins": np.array([-2.0, 9.0, 0.5, 0.5, 0.5])})
    made = with_safe_sets(
        load(tmp_path / "a.npz"), lambda states, context: Box(0 * states, 0 * states + 4), "r"
    )
    margins = as_online_rows(made).timeline.margin
    np.testing.assert_array_equal(margins, np.float32([-2, 2, 0.5, 0, 0, -1, 0]))


def test_margins_of_other_rules_do_not_count(tmp_path):
    stored = {"margins": np.full(5, -2.0), "rules_fingerprint": "rules-1"}
    np.savez(tmp_path / "a.npz", **columns() | stored)
    data = load(tmp_path / "a.npz")
    for name, margins in (("rules-1", [-2] * 3), ("rules-2", [1, 2, 1])):
        made = with_safe_sets(data, lambda states, context: Box(0 * states, 0 * states + 4), name)
        np.testing.assert_array_equal(as_online_rows(made).timeline.margin[:3], margins)


def everything_of(kind):
    """A set of two-dimensional or two-component actions, and one of the same form that holds nothing."""
    if kind == "product":
        return ProductMask(np.ones(5, bool), (2, 3)), ProductMask(np.array([0, 0, 1, 1, 1], bool), (2, 3))
    space, rule = Box(np.zeros(2), np.ones(2)), Polytope(np.array([[1.0, 1.0]]), np.array([1.5]))
    nothing = Polytope(np.array([[1.0, 1.0]]), np.array([-1.0]))
    return Intersection(space, rule), Intersection(space, nothing)


@pytest.mark.parametrize("kind", ["product", "intersection"])
def test_any_set_that_allows_nothing_becomes_what_ran(tmp_path, kind):
    """As in the replay buffer, a backup counts the action that ran, alone, also in the last state of an episode."""
    full, nothing = everything_of(kind)
    actions = np.array(
        [[0, 1], [1, 0], [0, 0], [1, 0], [0, 1]], np.float32 if kind == "intersection" else int
    )
    codes = np.stack([full.encode(), nothing.encode(), *[full.encode()] * 4, nothing.encode()])
    np.savez(tmp_path / "a.npz", **columns() | {"actions": actions})
    data = load(tmp_path / "a.npz")
    made = with_safe_sets(data, lambda states, _: decode(codes[: len(states)], full.spec), "rules-1")
    sets = decode(as_online_rows(made).timeline.safe_set, full.spec)
    for row, ran in ((1, actions[1]), (6, actions[4])):
        assert sets[row].contains(ran)
        assert not sets[row].contains(np.array([1, 1], actions.dtype))
        assert not sets[row].nearest(ran).empty
    assert sets[0].contains(np.array([0, 0], actions.dtype))


def test_without_next_safe_sets_the_set_after_a_time_limit_is_unknown(tmp_path):
    path = flat_sets(tmp_path / "a.npz", safe_set_spec=json.dumps({"kind": "box", "dimension": 1}))
    data = load(path)
    assert data.has_safe_set.tolist() == [True] * 6 + [False]  # the first episode ends in a terminal
    with pytest.raises(GxError, match="'safe_set', row 6"):
        with_safe_sets(data, None, "rules-1")
    kept = with_safe_sets(data, None, "rules-1", missing="drop")
    assert kept.steps == 4
    as_limit = load(path, time_limit_steps=3)  # its terminal is a time limit too
    assert as_limit.has_safe_set.tolist() == [True] * 3 + [False] + [True] * 2 + [False]


def test_unknown_sets_are_the_users_choice(data):
    with pytest.raises(GxError, match=r"a\.npz: 'safe_set', row 0: .*guarded backup.*assume-all.*drop"):
        with_safe_sets(data, None, "rules-1")
    assumed = with_safe_sets(data, None, "rules-1", missing="assume-all", everything_allowed=ALL)
    assert (assumed.timeline.safe_set == 7).all()
    assert "7 rows count every action as allowed" in audit(assumed)["findings"][-1]
    with pytest.raises(GxError, match=r"other rules .assumed:rules-1"):
        with_safe_sets(assumed, None, "rules-1")  # an assumption is no knowledge
    with pytest.raises(GxError, match="code of the full set"):
        with_safe_sets(data, None, "rules-1", missing="assume-all")
    with pytest.raises(GxError, match="leaves nothing"):
        with_safe_sets(data, None, "rules-1", missing="drop")
    with pytest.raises(GxError, match="assume-all, drop or error"):
        with_safe_sets(data, None, "rules-1", missing="guess")


def test_some_rows_unknown(data):
    def encode(states, context):
        return np.ones((len(states), 1), np.uint8), states[:, 0] != 1

    with pytest.raises(GxError, match="row 1"):
        with_safe_sets(data, encode, "rules-1")
    assumed = with_safe_sets(data, encode, "rules-1", missing="assume-all", everything_allowed=ALL)
    assert assumed.timeline.safe_set[:, 0].tolist() == [1, 7, 1, 1, 1, 7, 1]
    dropped = with_safe_sets(data, encode, "rules-1", missing="drop")
    dropped.timeline.check_episodes()
    # Only the step from 2 to 3 has a known set at both ends; 0 and 1 are its history.
    assert dropped.timeline.observation[:, 0].tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(dropped.timeline.is_step).tolist() == [2]
    said = "a.npz: 4 of 5 steps left out: the safe set before or after them is unknown"
    assert dropped.findings[-1] == said


def test_a_piece_of_an_episode_has_the_context_of_the_whole(data):
    def encode(states, context):
        return np.column_stack([context["episode_step"], context["previous_action"]]).astype(np.uint8)

    whole = with_safe_sets(data, encode, "rules-1").timeline
    piece = with_safe_sets(data.where("wind == 0.2"), encode, "rules-1").timeline
    rows = slice(np.flatnonzero(piece.is_step)[0], None)
    assert piece.safe_set[rows].tolist() == whole.safe_set[2:4].tolist() == [[2, 2], [3, 3]]


def test_audit_counts(data):
    report = audit(data)
    assert (report["rows"], report["steps"], report["episodes"]) == (7, 5, 2)
    assert (report["terminated_episodes"], report["truncated_episodes"]) == (1, 1)
    assert report["episode_return"] == {"min": 3.0, "mean": 5.0, "max": 7.0}
    assert report["reward"] == {"min": 0.0, "mean": 2.0, "max": 4.0}
    assert report["action"] == {"min": [1.0], "max": [5.0]}
    assert report["actions_out_of_range_steps"] is None
    assert report["unsafe_share"] is None
    nothing = {"rules": None, "missing_rows": 7, "missing_share": 1, "empty_rows": None, "empty_share": None}
    assert report["safe_sets"] == nothing
    assert "7 rows have no safe set" in report["findings"][-1]

    opaque = with_safe_sets(data, lambda states, context: states.astype(np.uint8), "rules-1")
    assert audit(opaque)["safe_sets"] == nothing | {"rules": "rules-1", "missing_rows": 0, "missing_share": 0}

    def between(states, context):
        return Box(states, np.full_like(states, 2)), context["episode_step"] > 0

    made = with_safe_sets(data, between, "rules-2", missing="drop")
    # Left are the states 1, 2, 3 and 1, 2; nothing lies between 3 and 2.
    assert audit(made)["safe_sets"] == {
        "rules": "rules-2", "missing_rows": 0, "missing_share": 0, "empty_rows": 1, "empty_share": 0.2
    }  # fmt: skip
    full = Box(np.array([-9.0]), np.array([9.0]))
    assumed = with_safe_sets(data, between, "rules-2", missing="assume-all", everything_allowed=full)
    shares = audit(assumed)["safe_sets"]
    assert (shares["rules"], shares["missing_rows"], shares["missing_share"]) == ("assumed:rules-2", 2, 2 / 7)


def test_the_spec_is_kept_with_the_codes(data, tmp_path):
    def encode(states, context):
        return Box(states - 1, states + 1)

    made = with_safe_sets(data, encode, "rules-1")
    again = with_safe_sets(data, lambda *_: pytest.fail("the cache was not used"), "rules-1")
    for each in (made, again, load(made.save(tmp_path / "kept"))):
        assert each.safe_set_spec == {"kind": "box", "dimension": 1}
        sets = decode(each.timeline.safe_set, each.safe_set_spec)
        assert (sets.low == each.timeline.observation - 1).all()
        assert (sets.high == each.timeline.observation + 1).all()


def test_another_reading_of_the_state_is_not_the_same(data):
    def encode_as(number):
        return lambda states, context: Box(states - number, states + number)

    def high(number, state_fingerprint, dataset=data):
        made = with_safe_sets(dataset, encode_as(number), "rules-1", state_fingerprint=state_fingerprint)
        assert made.state_fingerprint == state_fingerprint
        return made.timeline.safe_set[0, 1]

    assert (high(1, "one"), high(2, "two"), high(3, None)) == (1, 2, 3)
    assert (high(7, "one"), high(7, "two")) == (1, 2)  # from the cache
    one = with_safe_sets(data, encode_as(1), "rules-1", state_fingerprint="one")
    assert high(7, "other", one) == 7
    assert with_safe_sets(one, None, "rules-1") is one


def test_a_column_holds_sets_of_one_size(data):
    def encode(states, context):
        count = 1 + int(states.max() > 2)
        return Polytope(np.zeros((len(states), count, 1)), np.ones((len(states), count)))

    with pytest.raises(GxError, match="as many half-spaces in every state"):
        with_safe_sets(data, encode, "rules-1", batch_rows=3)


def test_audit_lists_all_that_is_wrong(tmp_path):
    bad = columns()
    bad["rewards"][1] = np.nan
    bad["observations"][4] = np.inf
    bad["unsafe_events"] = np.array([0, 0, 1, 0, 0])
    np.savez(tmp_path / "bad.npz", **bad)
    allowed = ActionRange(low=np.array([-1.0]), high=np.array([3.0]))
    report = audit(load(tmp_path / "bad.npz", actions=allowed, strict=False))
    json.dumps(report, allow_nan=False)
    assert report["reward"] == {"min": 0.0, "mean": 2.25, "max": 4.0}
    assert report["not_finite_rows"] == {"observation": 1, "reward": 1}
    assert report["unsafe_share"] == 0.2
    assert report["actions_out_of_range_steps"] == 2
    findings = "\n".join(report["findings"])
    for part in ("'rewards', row 1", "'observations', row 4", "'actions', row 3"):
        assert part in findings
    assert as_table(report).row_count > 15
