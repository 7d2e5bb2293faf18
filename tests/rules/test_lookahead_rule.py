"""Look-ahead in worlds small enough to know the truth, and in a MuJoCo world."""

import json

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpd_gx as gx

STATES, ACTIONS, DEPTH = 12, 3, 6


class World:
    """A world given by a table; `chance` adds a second outcome to every step."""

    def __init__(self, seed, chance=False):
        generator = np.random.default_rng(seed)
        self.table = generator.integers(STATES, size=(STATES, ACTIONS))
        self.other = generator.integers(STATES, size=(STATES, ACTIONS)) if chance else self.table
        self.bad = generator.random(STATES) < 0.3
        self.bad[0] = False
        self.at, self.steps = 0, 0

    def step(self, action, generator=None):
        tables = (self.table, self.other)
        self.at = int(tables[0 if generator is None else generator.integers(2)][self.at, action])
        return bool(self.bad[self.at])

    # the model of it
    fingerprint = "a table"

    def here(self, state):
        return self.place(state.at)

    def place(self, at):
        return gx.Place(bytes([at]), bool(self.bad[at]))

    def advance(self, place, action):
        self.steps += 1
        return self.place(self.table[place.identity[0], action])

    def outcomes(self, place, action, previous_action):
        if self.other is self.table:
            return [self.advance(place, action)]
        self.steps += 2
        return [self.place(t[place.identity[0], action]) for t in (self.table, self.other)]

    def longest(self, depth):
        """How long each action can stay safe, in steps up to depth [states, actions]: the truth."""
        value = np.zeros(STATES, dtype=int)
        for left in range(1, depth + 1):
            after = np.where(self.bad[self.table], 0, 1 + value[self.table])
            value = np.minimum(after.max(axis=1), left)
        return np.where(self.bad, 0, after.T).T


class CalmWorld(World):
    """The same; the model also tells where nothing can go wrong for good, and what to do elsewhere."""

    def __init__(self, seed):
        super().__init__(seed)
        lasting = self.longest(2 * STATES)
        self.calm = ~self.bad & (lasting == 2 * STATES).all(axis=1)
        self.best = lasting.argmax(axis=1)

    def place(self, at):
        return gx.Place(bytes([at]), bool(self.bad[at]), settled=bool(self.calm[at]))

    def harmless(self, state, action):
        return bool(self.calm[state.at])

    def suggest(self, place, held):
        return int(self.best[place.identity[0]])


def lookahead(world, **options):
    return gx.Lookahead(world, **{"depth": DEPTH, "held": range(ACTIONS), **options})


def walk(world, guardian, proposals):
    """Guarded steps; the verdicts, and whether each step met the unsafe event."""
    story = []
    for proposed in proposals:
        verdict = guardian.certify(world, proposed)
        story.append((int(verdict.action), str(verdict.status), world.step(verdict.action)))
        if world.bad[world.at]:
            world.at = 0
    return story


seeds = st.integers(0, 10_000)
proposals = st.lists(st.integers(0, ACTIONS - 1), min_size=1, max_size=30)


@pytest.mark.parametrize("kind", [World, CalmWorld])
@given(seed=seeds, proposed=proposals)
def test_what_it_allows_can_really_stay_safe_and_no_event_comes_unannounced(kind, seed, proposed):
    world = kind(seed)
    truth = world.longest(DEPTH)
    rule = lookahead(world)
    guardian = gx.Guardian(gym.spaces.Discrete(ACTIONS), rule)
    for action in proposed:
        at = world.at
        verdict = guardian.certify(world, action)
        if verdict.inevitable:  # every action was asked, and none was found to stay safe
            assert verdict.safe_set.tested.all()
        for a in np.flatnonzero(verdict.safe_set.allowed):
            assert truth[at, a] == DEPTH
        for a in np.flatnonzero(verdict.safe_set.tested):
            assert (rule.fn(world, a) + 1) * DEPTH <= truth[at, a] + 1e-9
        unsafe = world.step(verdict.action)
        assert verdict.inevitable or not unsafe
        if unsafe:
            world.at = 0
    assert rule.simulated_steps == world.steps


@given(seeds)
def test_nothing_is_simulated_beyond_where_nothing_can_go_wrong(seed):
    world = CalmWorld(seed)
    for at in np.flatnonzero(~world.bad).tolist():
        world.at, rule = at, lookahead(world)
        gx.Guardian(gym.spaces.Discrete(ACTIONS), rule).certify(world, 0)
        if world.calm[world.at]:
            assert rule.simulated_steps == 0
        elif world.calm[world.table[world.at, 0]]:
            assert rule.simulated_steps == 1


@given(seeds)
def test_a_plan_is_followed_with_one_new_step_of_simulation(seed):
    world = World(seed)
    world.bad[:] = False
    rule = lookahead(world)
    guardian = gx.Guardian(gym.spaces.Discrete(ACTIONS), rule)
    world.step(guardian.certify(world, 0).action)
    assert rule.simulated_steps <= DEPTH
    before = rule.simulated_steps
    for _ in range(10):
        assert guardian.certify(world, 0).status == "allowed"
        world.step(0)
    assert rule.simulated_steps - before <= 2 * 10  # the action itself, and the plan one step longer


def test_a_plan_that_leads_into_danger_is_repaired():
    """A corridor whose only way out is a turn at one door; turning anywhere else ends it at once."""
    length, door = 40, 30

    class Corridor:
        at, fingerprint = 0, "a corridor"

        def here(self, state):
            return self.place(state.at)

        def place(self, at):
            return gx.Place(at.to_bytes(2, "big"), at == length)

        def advance(self, place, action):
            at = int.from_bytes(place.identity, "big")
            if at > length:
                return place
            return self.place(at + 1 if action == 0 else 2 * length if at == door else length)

        def outcomes(self, place, action, previous_action):
            return [self.advance(place, action)]

    for effort in (0, 40):
        world = Corridor()
        rule = gx.Lookahead(world, depth=20, held=[0, 1], attempts=1, effort=effort)
        guardian = gx.Guardian(gym.spaces.Discrete(2), rule)
        while world.at < door:
            action = guardian.certify(world, 0).action
            world.at = int.from_bytes(world.advance(world.place(world.at), action).identity, "big")
        assert guardian.certify(world, 0).action == 1  # at the door itself, asking is enough
        assert (guardian.audit.tally.inevitable == 0) == (effort > 0)


@pytest.mark.parametrize("kind", [World, CalmWorld])
@given(seed=seeds, proposed=proposals, cut=st.integers(0, 30))
def test_memory_makes_a_resumed_run_the_same(kind, seed, proposed, cut):
    space = gym.spaces.Discrete(ACTIONS)
    whole, world = kind(seed), kind(seed)
    rule = lookahead(whole, attempts=1)
    story = walk(whole, gx.Guardian(space, rule), proposed)
    first = lookahead(world, attempts=1)
    before = walk(world, gx.Guardian(space, first), proposed[:cut])
    second = lookahead(world, attempts=1)
    second.restore_memory(json.loads(json.dumps(first.memory())))
    after = walk(world, gx.Guardian(space, second), proposed[cut:])
    assert before + after == story
    assert second.simulated_steps == rule.simulated_steps


def test_without_the_memory_a_resumed_run_may_differ():
    """Or the test above would prove nothing."""

    def resumed(seed, remember):
        world, chance = World(seed), np.random.default_rng(seed)
        proposed = chance.integers(ACTIONS, size=30).tolist()
        story, memory = [], None
        for k in range(0, 30, 5):
            rule = lookahead(world, attempts=1)
            if memory and remember:
                rule.restore_memory(memory)
            story += walk(world, gx.Guardian(gym.spaces.Discrete(ACTIONS), rule), proposed[k : k + 5])
            memory = rule.memory()
        return story

    def straight(seed):
        world, chance = World(seed), np.random.default_rng(seed)
        guardian = gx.Guardian(gym.spaces.Discrete(ACTIONS), lookahead(world, attempts=1))
        return walk(world, guardian, chance.integers(ACTIONS, size=30).tolist())

    assert all(resumed(seed, True) == straight(seed) for seed in range(40))
    assert any(resumed(seed, False) != straight(seed) for seed in range(40))


@given(seeds, seeds, proposals)
def test_environments_side_by_side_do_not_mix(one, other, proposed):
    space = gym.spaces.Discrete(ACTIONS)
    worlds = [World(one), World(one)]
    worlds[1].at = other % STATES
    alone = [World(one), World(one)]
    alone[1].at = other % STATES
    stories = [walk(w, gx.Guardian(space, lookahead(w)), proposed) for w in alone]
    guardian = gx.Guardian(space, lookahead(worlds[0]))
    for k, action in enumerate(proposed):
        verdicts = guardian.certify_batch(worlds, np.array([action, action]))
        for i, (world, verdict) in enumerate(zip(worlds, verdicts, strict=True)):
            assert (int(verdict.action), str(verdict.status)) == stories[i][k][:2]
            world.step(verdict.action)
            if world.bad[world.at]:
                world.at = 0


@given(seeds, proposals)
def test_the_worst_outcome_counts(seed, proposed):
    world, chance = World(seed, chance=True), np.random.default_rng(seed)
    guardian = gx.Guardian(gym.spaces.Discrete(ACTIONS), lookahead(world))
    for action in proposed:
        verdict = guardian.certify(world, action)
        if not verdict.inevitable:
            assert not world.bad[
                [world.table[world.at, verdict.action], world.other[world.at, verdict.action]]
            ].any()
        if world.step(verdict.action, chance):
            world.at = 0


def test_settings_are_checked_and_the_fingerprint_knows_them():
    world = World(0)
    with pytest.raises(gx.GxError, match="at least 2 steps"):
        lookahead(world, depth=1)
    assert lookahead(world).fingerprint != lookahead(world, depth=7).fingerprint
    rule = lookahead(world)
    fresh = rule.fingerprint
    gx.Guardian(gym.spaces.Discrete(ACTIONS), rule).certify(world, 0)
    assert rule.fingerprint == fresh  # what was found is no part of it
    looser = gx.Guardian(gym.spaces.Discrete(ACTIONS), rule.shifted(-0.5))
    assert (
        looser.safe_sets([world]).allowed.sum()
        >= gx.Guardian(gym.spaces.Discrete(ACTIONS), lookahead(world)).safe_sets([world]).allowed.sum()
    )


def test_what_a_search_allows_is_no_near_miss():
    """Its margin is 0 for every allowed action, since the search stops there: it does not say how near danger is."""
    world = World(0)
    world.bad[:] = False
    guardian = gx.Guardian(gym.spaces.Discrete(ACTIONS), lookahead(world), near_miss=0.05)
    for _ in range(5):
        assert guardian.certify(world, 0).margin == 0
    assert (guardian.audit.tally.allowed, guardian.audit.tally.near_misses) == (5, 0)


class Pushes(gym.ActionWrapper):
    """A pendulum on a cart, pushed left, not at all, or right; its state can be copied."""

    def __init__(self):
        super().__init__(gym.make("InvertedPendulum-v5").unwrapped)
        self.action_space = gym.spaces.Discrete(3)

    def action(self, action):
        return np.array([action - 1.0])

    def clone(self):
        data = self.unwrapped.data
        return np.concatenate([data.qpos, data.qvel])

    def restore_clone(self, clone):
        self.unwrapped.set_state(clone[:2], clone[2:])


def test_a_mujoco_pendulum_stays_up_far_longer_under_random_pushes():
    def fell(observation, reward, terminated, truncated, info):
        return terminated

    rule = gx.Lookahead(gx.Twin(Pushes(), fell, np.ndarray.tobytes), depth=20, held=range(3))
    guarded = gx.GuardedEnv(Pushes(), rule, state=lambda env, *_: env, embedding=[[-1], [0], [1]])
    lived = {guarded: 0, (bare := Pushes()): 0}
    for seed in range(4):
        for world in lived:
            world.reset(seed=seed)
            chance = np.random.default_rng(seed)
            for _ in range(100):
                lived[world] += 1
                if world.step(int(chance.integers(3)))[2]:
                    break
    assert lived[guarded] > 4 * lived[bare]
    assert guarded.audit.tally.projected > 0
