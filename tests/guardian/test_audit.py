"""The audit: right counts, the right answers, and a file that survives a kill."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import gymnasium as gym
import numpy as np
import pytest

import rlpd_gx as gx

LINE = gym.spaces.Box(-1, 1, (1,), np.float32)


def play(guardian, proposals):
    """Certify and count from outside."""
    seen = {"proposals": 0, "moved": 0, "near": 0, "depth": 0.0}
    for value in proposals:
        verdict = guardian.certify(None, np.array([value], np.float32))
        x = float(np.float32(value))
        seen["proposals"] += 1
        seen["moved"] += x > 0.5
        seen["near"] += 0.45 < x <= 0.5
        seen["depth"] += max(x - 0.5, 0)
        assert verdict.action[0] <= 0.5
    return seen


def test_counts_agree_with_a_count_from_outside():
    guardian = gx.Guardian(LINE, gx.bounds_rule(lambda s: ([-1], [0.5]), name="wall"), near_miss=0.05)
    seen = play(guardian, np.linspace(-0.9, 0.9, 181))
    counts = guardian.audit.tally
    assert (counts.proposals, counts.projected, counts.near_misses) == (
        seen["proposals"],
        seen["moved"],
        seen["near"],
    )
    assert counts.rules["wall"].blocked == seen["moved"]
    assert counts.rules["wall"].depth == pytest.approx(seen["depth"])
    assert counts.rules["wall"].deepest == pytest.approx(0.4, abs=1e-6)
    assert counts.distance == pytest.approx(seen["depth"], abs=1e-4)
    summary = guardian.audit.as_dict()
    assert summary["corrections"] == seen["moved"]
    assert summary["correction_rate"] == pytest.approx(seen["moved"] / 181)
    json.dumps(summary)


def test_a_batch_counts_like_one_by_one_and_remembered_verdicts_like_fresh_ones():
    rule = gx.bounds_rule(
        lambda s: (np.full((len(s), 1), -1.0), np.full((len(s), 1), 0.5)), batched=True, name="wall"
    )
    proposals = np.random.default_rng(0).uniform(-1, 1, (200, 1)).astype(np.float32)
    one, many = gx.Guardian(LINE, rule), gx.Guardian(LINE, rule)
    for p in proposals:
        one.certify(0.0, p)
    many.certify_batch(np.zeros(200), proposals)
    a, b = one.audit.as_dict(), many.audit.as_dict()
    for key in ("proposals", "projected", "near_misses", "near_misses_executed", "corrections"):
        assert a[key] == b[key]
    assert a["distance"] == pytest.approx(b["distance"])

    mask = np.array([True, False, True])
    remembered = gx.Guardian(gym.spaces.Discrete(3), gx.mask_rule(lambda s: mask, name="m"))
    ids = np.random.default_rng(1).integers(0, 3, 300)
    # lists are not
    plain = gx.Guardian(gym.spaces.Discrete(3), gx.mask_rule(lambda s: mask.tolist(), name="m"))
    for i in ids:
        assert remembered.certify(None, int(i)).action == plain.certify(None, int(i)).action
    assert remembered.audit.tally == plain.audit.tally
    assert remembered.audit.tally.projected == int((ids == 1).sum())


def test_a_near_miss_is_a_number():
    with pytest.raises(gx.GxError, match="near_miss is 'x'; give a number"):
        gx.Guardian(LINE, gx.bounds_rule(lambda s: ([-1], [0.5])), near_miss="x")


def test_zero_events_are_not_a_zero_rate():
    audit = gx.Audit()
    for _ in range(59):
        audit.end_episode(unsafe_event=False)
    assert audit.upper_bound(0.95) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert gx.Audit().upper_bound() == 1.0


def test_the_table_names_the_rule_and_by_how_much():
    guardian = gx.Guardian(LINE, gx.bounds_rule(lambda s: ([-1], [0.5]), name="wall"))
    play(guardian, [0.9, 0.1])
    text = str(guardian.audit)
    assert "blocked by wall" in text
    assert "0.4 at most" in text


def test_the_file_says_which_rule_blocked_what_and_reads_back_to_the_same_counts(tmp_path):
    path = tmp_path / "deep" / "audit.jsonl"
    rules = [
        gx.bounds_rule(lambda s: ([-1], [0.5]), name="wall"),
        gx.rule(lambda s, a: s != "bad", name="sense"),
    ]
    guardian = gx.Guardian(LINE, rules, audit=path, fallback=np.array([0.0]))
    for state, value in [("ok", 0.9), ("ok", 0.2), ("ok", 0.6)]:
        guardian.certify(state, np.array([value]))
    guardian.end_episode(unsafe_event=False)
    guardian.certify("ok", np.array([np.nan]))
    audit, events = gx.Audit.read(path)
    assert [e["status"] for e in events] == ["projected", "projected", "fallback"]
    assert events[0]["binding"] == ["wall"]
    assert events[0]["margins"]["wall"] == pytest.approx(-0.4, abs=1e-6)
    assert events[0]["proposed"] == [0.9]
    assert audit.tally == guardian.audit.tally


def test_runs_appended_to_one_file_add_up_and_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "audit.jsonl"
    for values in ([0.9, 0.1], [0.8]):
        guardian = gx.Guardian(LINE, gx.bounds_rule(lambda s: ([-1], [0.5]), name="wall"), audit=path)
        play(guardian, values)
        guardian.end_episode()
        with path.open("a") as file:
            file.write('{"event": "interv')  # what a kill in the middle of a write leaves
    audit, events = gx.Audit.read(path)
    assert audit.tally.proposals == 3
    assert audit.tally.rules["wall"].blocked == 2
    assert len(events) == 2


def test_the_file_survives_a_killed_process(tmp_path):
    path = tmp_path / "audit.jsonl"
    script = textwrap.dedent(
        """
        import sys, gymnasium as gym, numpy as np, rlpd_gx as gx
        space = gym.spaces.Discrete(2)
        guardian = gx.Guardian(space, gx.mask_rule(lambda s: np.array([True, False]), name="m"), audit=sys.argv[1])
        for i in range(10**9):
            guardian.certify(None, i % 2)
            print(i, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    said = -1
    deadline = time.time() + 60
    while said < 200 and time.time() < deadline:
        said = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    rest = process.communicate()[0].split()
    said = max([said, *(int(r) for r in rest if r.isdigit())][:-1] or [said])
    audit, events = gx.Audit.read(path)
    assert len(events) >= said // 2
    assert audit.tally.proposals >= said
    assert all(e["executed"] == 0 for e in events)


def test_an_audit_file_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(gx.GxError, match="audit file"):
        gx.Guardian(LINE, gx.bounds_rule(lambda s: ([-1], [0.5])), audit=tmp_path / "file" / "audit.jsonl")


def test_an_audit_belongs_to_one_guardian():
    audit = gx.Audit()
    rule = gx.bounds_rule(lambda s: ([-1], [0.5]))
    gx.Guardian(LINE, rule, audit=audit)
    with pytest.raises(gx.GxError, match="its own"):
        gx.Guardian(LINE, rule, audit=audit)


WALL = gx.bounds_rule(lambda s: ([-1], [0.5]), name="wall")


def test_a_file_cut_back_to_nothing_says_again_what_it_begins_with(tmp_path):
    """What a run does that was killed before its first checkpoint: it opens the file, then cuts it."""
    path = tmp_path / "audit.jsonl"
    play(gx.Guardian(LINE, WALL, audit=path), [0.9])
    guardian = gx.Guardian(LINE, WALL, audit=path)
    os.truncate(path, 0)
    play(guardian, [0.9, 0.1])
    guardian.end_episode()
    audit, events = gx.Audit.read(path)
    assert audit.fingerprint == guardian.fingerprint
    assert (audit.damaged_lines, len(events)) == (0, 1)
    assert audit.tally == guardian.audit.tally


def test_a_torn_line_is_closed_counted_and_costs_no_other(tmp_path):
    path = tmp_path / "audit.jsonl"
    play(gx.Guardian(LINE, WALL, audit=path), [0.9, 0.8])
    os.truncate(path, path.stat().st_size - 5)
    guardian = gx.Guardian(LINE, WALL, audit=path)
    play(guardian, [0.7])
    audit, events = gx.Audit.read(path)
    assert audit.damaged_lines == 1
    assert [e["proposed"] for e in events] == [[pytest.approx(0.9)], [pytest.approx(0.7)]]
    assert "damaged lines" in str(audit)


def test_damage_in_the_middle_is_counted_whatever_it_is(tmp_path):
    path = tmp_path / "audit.jsonl"
    guardian = gx.Guardian(LINE, WALL, audit=path)
    play(guardian, [0.9, 0.8, 0.7])
    guardian.end_episode()
    lines = path.read_bytes().splitlines()
    bad = [
        b"\xff\xfe",
        b"[1]",
        b"17",
        b'{"event": "correction"}',
        b'{"event": "other"}',
        b'{"event":',
        b"null",
    ]
    for line in bad:
        path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]) + b"\n")
        audit, events = gx.Audit.read(path)
        assert audit.damaged_lines == 1, line
        assert audit.tally == guardian.audit.tally
        assert len(events) == 3


def test_what_is_no_audit_file_is_a_sentence(tmp_path):
    (tmp_path / "noise").write_bytes(b"\x00\x01\n\xff")
    for name, said in (
        ("noise", "is not an audit file"),
        ("missing", "cannot be read"),
        (".", "cannot be read"),
    ):
        with pytest.raises(gx.GxError, match=said):
            gx.Audit.read(tmp_path / name)


def test_a_full_disk_is_noticed_and_the_torn_line_closed_afterwards(tmp_path):
    import resource

    path = tmp_path / "audit.jsonl"
    guardian = gx.Guardian(LINE, WALL, audit=path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # files may grow by 100 bytes more: the next line is written in part
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
        with pytest.raises(gx.GxError, match=r"audit file .* cannot be written"):
            guardian.certify(None, np.array([0.9], np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    play(guardian, [0.8])
    audit, events = gx.Audit.read(path)
    assert audit.damaged_lines == 1
    assert [e["proposed"] for e in events] == [[pytest.approx(0.8)]]


def test_brackets_in_names_are_printed_as_they_are():
    def fails(state, action):
        raise ValueError("[bold]no[/bold]")

    rules = [gx.bounds_rule(lambda s: ([-1], [0.5]), name="arm[red][/blue]"), gx.rule(fails, name="x[0]")]
    guardian = gx.Guardian(LINE, rules, fallback=np.zeros(1))
    guardian.certify(None, np.array([0.9], np.float32))
    text = str(guardian.audit)
    assert "blocked by arm[red][/blue]" in text
    assert "[bold]no[/bold]" in text
