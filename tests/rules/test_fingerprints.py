"""A fingerprint changes with everything that may change what a rule allows, and with nothing else."""

import subprocess
import sys
import textwrap
import types
from functools import partial, wraps

import gymnasium as gym
import numpy as np

import rlpd_gx as gx
from rlpd_gx.guards import Guard
from rlpd_gx.rules import fingerprint, unreadable

LIMIT = 1.0


def under_limit(state, action):
    return abs(action[0]) <= LIMIT


def of(fn, **options):
    return gx.rule(fn, **options).fingerprint


def test_globals_count(monkeypatch):
    before = of(under_limit)
    assert before == of(under_limit)
    monkeypatch.setitem(globals(), "LIMIT", 2.0)
    assert of(under_limit) != before


def test_code_defaults_closures_and_declarations_count():
    def make(limit):
        return lambda s, a: a <= limit

    assert of(make(1)) == of(make(1))
    assert of(make(1)) != of(make(2))
    assert of(lambda s, a: a < 1) != of(lambda s, a: a > 1)  # two on one line
    assert of(partial(under_limit, 1)) != of(partial(under_limit, 2))
    assert of(lambda s, a, c=1: a < c) != of(lambda s, a, c=2: a < c)
    assert of(under_limit) != of(under_limit, needs=("time",))
    assert of(under_limit) != gx.margin_rule(under_limit).fingerprint
    a = gx.l1_rule(lambda s: ([1.0], 1.0))
    assert a.fingerprint != a.shifted(0.1).fingerprint


def test_decorators_classes_modules_and_objects_count():
    def loud(f):
        @wraps(f)
        def inner(*args):
            return f(*args)

        return inner

    def inverted(f):
        @wraps(f)
        def inner(*args):
            return not f(*args)

        return inner

    assert of(loud(under_limit)) != of(inverted(under_limit))

    def holder(value):
        class Holder:
            limit = value

            def __call__(self, state, action):
                return self.helper(action)

            def helper(self, action):
                return action < self.limit

        return Holder()

    assert of(holder(1)) == of(holder(1))
    assert of(holder(1)) != of(holder(2))

    def module(value):
        helpers = types.ModuleType("my_helpers")
        helpers.limit = value
        return eval("lambda s, a: a < helpers.limit", {"helpers": helpers})

    assert of(module(1)) != of(module(2))
    for one, two in (
        (range(3), range(4)),
        (slice(1), slice(2)),
        ({1, 2}, {1, 3}),
        (np.arange(3), np.arange(3.0)),
    ):
        assert of(lambda s, a, x=one: x) == of(lambda s, a, x=one: x)
        assert of(lambda s, a, x=one: x) != of(lambda s, a, x=two: x)


def test_combinations_spaces_and_embeddings_count():
    a, b = gx.rule(lambda s, a: True, name="a"), gx.rule(lambda s, a: a == 1, name="b")
    assert (a & b).fingerprint != (a | b).fingerprint
    two, three = gym.spaces.Discrete(2), gym.spaces.Discrete(3)
    assert gx.Guardian(two, a).fingerprint != gx.Guardian(three, a).fingerprint
    line = [[0.0], [1.0]]
    assert gx.Guardian(two, a).fingerprint != gx.Guardian(two, a, embedding=line).fingerprint
    assert (
        gx.Guardian(two, a, embedding=line).fingerprint
        == gx.Guardian(two, a, embedding=np.array(line)).fingerprint
    )


def test_another_process_finds_the_same_fingerprint():
    script = textwrap.dedent(
        """
        from dataclasses import dataclass
        import rlpd_gx as gx
        from rlpd_gx.envs import atari, mujoco, highway
        @dataclass
        class Limit:
            least: float | None = None
        names, limit = {"b", "a", "c"}, Limit(2.0)
        rules = [gx.rule(lambda s, a: a in names), gx.rule(lambda s, a: a > limit.least)]
        rules += [mujoco.power_and_bent_joints, highway.driving, atari.Lookahead(atari.make("Freeway"))]
        print(*[rule.fingerprint for rule in rules], gx.rules.fingerprint(atari.emulator_state))
        """
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_a_guard_of_ones_own_can_be_read(monkeypatch):
    class Mine(Guard):
        def stored(self, transition):
            return transition if LIMIT else None

    guard = Mine("mine", mode="enforce")
    before = fingerprint(guard)
    assert unreadable(guard) == []
    assert before == fingerprint(Mine("mine", mode="enforce"))
    assert before != fingerprint(Mine("mine", mode="monitor"))
    monkeypatch.setitem(globals(), "LIMIT", 2.0)
    assert fingerprint(guard) != before
