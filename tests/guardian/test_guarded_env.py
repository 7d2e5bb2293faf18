"""Guarded environments, watched from outside: a wrapper below the guard sees what is really executed."""

import copy
import pickle
from collections import namedtuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from line_world import NOT_MARKOV, RATE, Line

import rlpd_gx as gx


class Watch(gym.Wrapper):
    """Stands below the guard and keeps every executed action with the observation it was taken in."""

    def __init__(self, env):
        super().__init__(env)
        self.executed = []

    def reset(self, **kwargs):
        self.observation, info = self.env.reset(**kwargs)
        return self.observation, info

    def step(self, action):
        self.executed.append((np.array(self.observation), np.array(action)))
        self.observation, *rest = self.env.step(action)
        return self.observation, *rest


@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # the checker's remarks about CartPole itself and about wrappers
def test_a_guarded_environment_is_a_proper_environment():
    env = gx.GuardedEnv(
        gym.make("CartPole-v1").unwrapped, gx.mask_rule(lambda s: np.array([s[2] < 0.05, True]))
    )
    check_env(env, skip_render_check=True)
    box = gx.GuardedEnv(gym.make("Pendulum-v1").unwrapped, gx.bounds_rule(lambda s: ([-1.0], [1.0])))
    check_env(box, skip_render_check=True)
    assert env.spec.additional_wrappers[-1].name == "GuardedEnv"


def test_the_verdict_travels_in_info():
    env = gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-0.2], [0.2]), name="slow"))
    env.reset(seed=0)
    *_, info = env.step(np.array([1.0], np.float32))
    assert info["guardian"].status == "projected"
    assert info["guardian"].binding == ("slow",)
    assert env.unwrapped.received == pytest.approx([0.2], abs=1e-6)


def test_a_rate_limit_through_the_context_holds_whatever_agent_and_environment_do_to_their_arrays():
    with pytest.warns(UserWarning, match=NOT_MARKOV):
        env = gx.GuardedEnv(Line(), RATE)
    for _ in range(3):
        observation, _ = env.reset(seed=0)
        previous = 0.0
        for _ in range(5):
            action = np.array([1.0], np.float32)
            observation, *_ = env.step(action)
            assert abs(float(env.unwrapped.received[0]) - previous) <= 0.1 + 1e-7
            previous = float(env.unwrapped.received[0])
            observation *= 100
            action[:] = -1
        assert previous == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_rate_limit_in_a_vector_of_environments(mode):
    vector = SyncVectorEnv([Line, Line, Line], autoreset_mode=mode)
    batched = gx.bounds_rule(
        lambda s, previous_action: (previous_action - 0.1, previous_action + 0.1),
        needs=("previous_action",),
        batched=True,
    )
    with pytest.warns(UserWarning, match=NOT_MARKOV):
        env = gx.GuardedVectorEnv(vector, batched)
    env.reset(seed=0)
    previous, executed, rng = np.zeros(3), 0, np.random.default_rng(0)
    for _ in range(24):
        before = [e.t for e in vector.envs]
        *_, infos = env.step(rng.uniform(-1, 1, (3, 1)).astype(np.float32))
        for i, inner in enumerate(vector.envs):
            if infos["guardian"][i] is None:
                assert mode is AutoresetMode.NEXT_STEP
                assert inner.t == 0
                previous[i] = 0.0
                continue
            start = 0.0 if before[i] == 0 else previous[i]
            assert abs(float(inner.received[0]) - start) <= 0.1 + 1e-7
            previous[i] = float(inner.received[0])
            executed += 1
    assert env.audit.tally.proposals == executed
    assert env.audit.tally.episodes == (24 // 6 if mode is AutoresetMode.NEXT_STEP else 24 // 5) * 3


def test_a_vector_environment_gets_actions_of_its_own_type():
    vector = SyncVectorEnv([Line, Line])
    env = gx.GuardedVectorEnv(
        vector, gx.bounds_rule(lambda s: (np.full((2, 1), 0.5), np.full((2, 1), 0.7)), batched=True)
    )
    env.reset(seed=0)
    env.step([[0], [0]])  # whole numbers must not turn 0.5 into 0
    assert [float(e.received[0]) for e in vector.envs] == pytest.approx([0.5, 0.5])


def test_an_environment_that_hides_where_episodes_end_is_refused():
    rule = gx.bounds_rule(lambda s: ([-1], [1]))
    vector = SyncVectorEnv([Line])
    vector.metadata = {k: v for k, v in vector.metadata.items() if k != "autoreset_mode"}
    with pytest.raises(gx.GxError, match="autoreset_mode"):
        gx.GuardedVectorEnv(vector, rule)
    with pytest.raises(gx.GxError, match="Autoreset"):
        gx.GuardedEnv(gym.wrappers.Autoreset(Line()), rule)


def test_what_would_change_an_allowed_action_inside_the_guard_is_refused():
    rule = gx.bounds_rule(lambda s: ([-1], [1]))
    with pytest.raises(gx.GxError, match="StickyAction"):
        gx.GuardedEnv(gym.wrappers.StickyAction(Line(), 0.5), rule)
    for nested in (gx.GuardedEnv(Line(), rule), gym.wrappers.TimeLimit(gx.GuardedEnv(Line(), rule), 9)):
        with pytest.raises(gx.GxError, match="give all rules to one guard"):
            gx.GuardedEnv(nested, rule)
        with pytest.raises(gx.GxError, match="give all rules to one guard"):
            gx.GuardedVectorEnv(SyncVectorEnv([lambda nested=nested: nested]), rule)
    with pytest.raises(gx.GxError, match="give all rules to one guard"):
        gx.GuardedVectorEnv(gx.GuardedVectorEnv(SyncVectorEnv([Line]), rule), rule)


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (lambda: gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-1], [1]))), "give all rules to one guard"),
        (lambda: gym.wrappers.StickyAction(Line(), 0.5), "StickyAction"),
    ],
)
def test_members_in_other_processes_are_asked_for_such_layers(inside, said):
    members = gym.vector.AsyncVectorEnv([Line, inside])
    with pytest.raises(gx.GxError, match=said):
        gx.GuardedVectorEnv(members, gx.bounds_rule(lambda s: ([-1], [1])))
    members.close()


class Doors(gym.Env):
    """Which two of four doors are open is in `info`, as an array, a list and a tensor inside a tuple with names."""

    observation_space, action_space = gym.spaces.Discrete(4), gym.spaces.Discrete(4)
    Named = namedtuple("Named", "open")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = []
        return 0, self._doors()

    def step(self, action):
        self.taken.append(int(action))
        return 0, 0.0, False, False, self._doors()

    def _doors(self):
        here = [True, False, True, False]
        return {"array": np.array(here), "list": list(here), "named": self.Named(torch.tensor(here))}


READINGS = {
    "array": lambda env, observation, info: info["array"],
    "list": lambda env, observation, info: {"open": info["list"]},
    "named": lambda env, observation, info: info["named"].open,
}


@pytest.mark.parametrize("reading", READINGS)
def test_an_agent_that_writes_into_info_does_not_change_what_rules_read(reading):
    rule = gx.mask_rule(lambda s: np.array([bool(b) for b in (s["open"] if isinstance(s, dict) else s)]))
    env = gx.GuardedEnv(Doors(), rule, state=READINGS[reading])
    _, info = env.reset(seed=0)
    for _ in range(3):
        info["array"][:], info["list"][:] = True, [True] * 4
        info["named"].open[:] = True
        *_, info = env.step(1)
    assert not {1, 3} & set(env.unwrapped.taken)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_the_same_in_a_vector(mode):
    vector = SyncVectorEnv([Doors, Doors], autoreset_mode=mode)
    rule = gx.mask_rule(lambda s: s, name="open", batched=True)
    env = gx.GuardedVectorEnv(vector, rule, state=lambda envs, observations, infos: infos["array"])
    _, infos = env.reset(seed=0)
    for _ in range(3):
        infos["array"][:] = True
        *_, infos = env.step(np.array([1, 3]))
    assert not {1, 3} & {action for member in vector.envs for action in member.taken}


@pytest.mark.parametrize("in_vector", [False, True])
def test_after_an_environment_has_raised_in_a_step_a_reset_comes_first(in_vector):
    """It may have moved: neither its state nor the previous action is known."""

    class Breaks(Line):
        def step(self, action):
            result = super().step(action)
            if self.breaks:
                raise TimeoutError("the arm did not answer")
            return result

    member = Breaks()
    member.breaks = False
    with pytest.warns(UserWarning, match=NOT_MARKOV):
        env = (
            gx.GuardedVectorEnv(SyncVectorEnv([lambda: member]), RATE)
            if in_vector
            else gx.GuardedEnv(member, RATE)
        )
    action = np.ones((1, 1) if in_vector else 1, np.float32)
    env.reset(seed=0)
    env.step(action)
    member.breaks = True
    with pytest.raises(TimeoutError):
        env.step(action)
    member.breaks = False
    with pytest.raises(gym.error.ResetNeeded):
        env.step(action)
    assert env.audit.tally.episodes == 1
    env.reset(seed=0)
    env.step(action)


def test_verdicts_can_be_copied_and_sent_to_other_processes():
    env = gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-0.2], [0.2]), name="slow"))
    env.reset(seed=0)
    *_, info = env.step(np.array([1.0], np.float32))
    assert copy.deepcopy(info)["guardian"] == info["guardian"]
    assert pickle.loads(pickle.dumps(info))["guardian"] == info["guardian"]


def test_an_episode_that_may_not_go_on_ends_and_nothing_is_executed():
    env = gx.GuardedEnv(Line(), gx.rule(lambda s, a: 1 / 0, name="broken"))
    first, _ = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert np.array_equal(observation, first)
    assert "ZeroDivisionError" in info["guardian_stop"]
    assert "guardian" not in info
    assert env.unwrapped.t == 0
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(1, np.float32))
    assert env.audit.tally.stopped == 1


def test_steps_after_the_end_are_refused_and_count_for_nothing():
    env = gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-1], [1])), unsafe_event=lambda *outcome: False)
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.zeros(1, np.float32))
    bound = env.audit.upper_bound()
    for _ in range(3):
        with pytest.raises(gym.error.ResetNeeded, match="the episode is over"):
            env.step(np.zeros(1, np.float32))
    assert env.safe_set() is not None  # the last state can still be looked at
    env.reset()
    env.reset()  # nothing happened between the two
    env.close()
    assert env.audit.tally.episodes == 1
    assert env.audit.upper_bound() == bound


@pytest.mark.filterwarnings("ignore:.*is not batched")
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("parameters", [{"limit": 0.1}, lambda t: {"limit": np.array(0.1 + t / 10)}, "words"])
def test_a_vector_is_guarded_as_its_members_would_be_alone(mode, parameters):
    """The same proposals to a vector and to single environments: same executed actions, same counts."""

    class Uneven(Line):
        def __init__(self, length):
            self.length, self.executed = length, []

        def step(self, action):
            observation, reward, terminated, _, info = super().step(action)
            self.executed.append(float(self.received[0]))
            return observation, reward, terminated, self.t >= self.length, info

    def limits(state, previous_action, time, parameters):
        size = 0.3 if parameters == "words" else float(parameters["limit"])
        return previous_action - size, previous_action + size + time / 100

    rule = gx.bounds_rule(limits, needs=("previous_action", "time", "parameters"))
    lengths, options = (3, 5), {"parameters": parameters, "unsafe_event": lambda o, *rest: o[..., 0] > 0.5}
    vector = SyncVectorEnv([lambda n=n: Uneven(n) for n in lengths], autoreset_mode=mode)
    with pytest.warns(UserWarning, match=NOT_MARKOV):
        env = gx.GuardedVectorEnv(vector, rule, **options)
    env.reset(seed=0)
    proposals = np.random.default_rng(0).uniform(-1, 1, (20, 2, 1)).astype(np.float32)
    heard = [[], []]
    for proposed in proposals:
        *_, infos = env.step(proposed)
        for i in np.flatnonzero(infos["_guardian"]):
            heard[i].append(proposed[i])
    env.close()
    total = []
    for i, length in enumerate(lengths):
        with pytest.warns(UserWarning, match=NOT_MARKOV):
            alone = gx.GuardedEnv(Uneven(length), rule, **options)
        over = True
        for proposed in heard[i]:
            if over:
                alone.reset()
            *_, over, _ = alone.step(proposed)
        alone.close()
        assert alone.unwrapped.executed == vector.envs[i].executed
        total.append(alone.audit.tally)
    both = total[0] + total[1]
    for name in (
        "proposals",
        "projected",
        "episodes",
        "episodes_corrected",
        "episodes_with_unsafe_event",
        "unsafe_events",
    ):
        assert getattr(env.audit.tally, name) == getattr(both, name), name
    assert 0 < both.episodes_with_unsafe_event < both.episodes


def test_members_of_a_vector_with_several_discrete_actions_may_reset_apart():
    class Buttons(Line):
        action_space = gym.spaces.MultiDiscrete([2, 3])

        def __init__(self, length):
            self.length = length

        def step(self, action):
            self.t += 1
            return np.zeros(1), 0.0, False, self.t >= self.length, {}

    vector = SyncVectorEnv([lambda: Buttons(2), lambda: Buttons(3)])
    env = gx.GuardedVectorEnv(vector, gx.rule(lambda s, a: a[:, 1] != 1, batched=True))
    env.reset(seed=0)
    for _ in range(12):
        *_, infos = env.step(np.array([[1, 1], [0, 1]]))
        assert all(v is None or v.action[1] != 1 for v in infos["guardian"])
    assert env.audit.tally.episodes == 12 // 3 + 12 // 4


def test_monitor_mode_executes_the_proposal():
    env = gx.GuardedEnv(Line(), gx.bounds_rule(lambda s: ([-0.2], [0.2])), mode="monitor")
    env.reset(seed=0)
    env.step(np.array([1.0], np.float32))
    assert env.unwrapped.received == pytest.approx([1.0])
    assert env.audit.tally.projected == 1


# --- real rules ------------------------------------------------------------------------------------------------


def _power(w, a):
    return np.maximum(w * a, 0).sum()


def _absolute(w, a):
    return np.abs(w * a).sum()


def _bent(q, a):
    return (a**2 * np.sin(q) ** 2).sum()


BENCHMARK = [
    ("Hopper-v5", "power", lambda w, q, a: _power(w, a) <= 10),
    ("Walker2d-v5", "power", lambda w, q, a: _power(w, a) <= 10),
    ("HalfCheetah-v5", "cheetah_power", lambda w, q, a: _absolute(w, a) <= 20),
    ("Hopper-v5", "power_and_bent_joints", lambda w, q, a: _absolute(w, a) <= 10 and _bent(q, a) <= 0.1),
    ("Walker2d-v5", "power_and_bent_joints", lambda w, q, a: _absolute(w, a) <= 10 and _bent(q, a) <= 0.1),
    ("Reacher-v5", "reacher_torque", lambda w, q, a: (a**2).sum() <= 0.05),
]


class JointWatch(gym.Wrapper):
    """Recomputes a constraint from qpos and qvel by itself, for every action that reaches the simulator."""

    def __init__(self, env, holds):
        super().__init__(env)
        self.holds, self.violations, self.steps = holds, 0, 0

    def step(self, action):
        n = self.env.action_space.shape[0]
        data = self.env.unwrapped.data
        first = 0 if n == 2 else 3  # a free root has three coordinates in these planar bodies
        w, q = data.qvel[first : first + n], data.qpos[first : first + n]
        self.steps += 1
        self.violations += not self.holds(w, q, action.astype(np.float64))
        return self.env.step(action)


@pytest.mark.filterwarnings("ignore:.*compiler attribute")
@pytest.mark.parametrize(("env_id", "rule", "holds"), BENCHMARK, ids=[f"{e}-{r}" for e, r, _ in BENCHMARK])
def test_the_action_constraints_of_the_benchmark_are_never_broken(env_id, rule, holds):
    from rlpd_gx.envs import mujoco

    watch = JointWatch(gym.make(env_id), holds)
    env = gx.GuardedEnv(watch, getattr(mujoco, rule), state=mujoco.joint_state)
    env.action_space.seed(1)
    env.reset(seed=1)
    action = None
    for step in range(600):
        # Strong pushes held for a while make the joints fast: random ones alone hardly reach the limits.
        action = env.action_space.sample() if step % 7 == 0 else action
        *_, terminated, truncated, _ = env.step(np.sign(action) * env.action_space.high)
        if terminated or truncated:
            env.reset()
    assert watch.steps == 600
    assert watch.violations == 0
    assert env.audit.tally.projected > 30  # the rule was really in the way
    assert env.audit.tally.projected + env.audit.tally.allowed == 600


@pytest.mark.filterwarnings("ignore:.*compiler attribute")
def test_without_the_guard_the_same_pushes_break_the_benchmark_constraint():
    _, _, holds = BENCHMARK[1]
    watch = JointWatch(gym.make("Walker2d-v5"), holds)
    watch.reset(seed=1)
    watch.action_space.seed(1)
    for _ in range(200):
        *_, terminated, truncated, _ = watch.step(watch.action_space.sample())
        if terminated or truncated:
            watch.reset()
    assert watch.violations > 20


def test_a_vector_of_simulators_is_guarded_at_once():
    from rlpd_gx.envs import mujoco

    vector = SyncVectorEnv([lambda: JointWatch(gym.make("Walker2d-v5"), BENCHMARK[1][2])] * 3)
    env = gx.GuardedVectorEnv(vector, mujoco.power, state=mujoco.joint_state)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(120):
        env.step(env.action_space.sample())
    assert sum(e.violations for e in vector.envs) == 0
    assert env.audit.tally.projected > 20


def test_driving_rules_hold_on_the_highway():
    import highway_env

    from rlpd_gx.envs import highway

    gym.register_envs(highway_env)

    class Traffic(gym.Wrapper):
        violations = steps = 0

        def step(self, action):
            road, ego = self.env.unwrapped.road, self.env.unwrapped.vehicle
            lane, lanes = ego.lane_index[2], len(road.network.all_side_lanes(ego.lane_index))
            target = {0: lane - 1, 2: lane + 1}.get(int(action), lane)
            bad = not 0 <= target < lanes
            for v in road.vehicles:
                if v is ego:
                    continue
                gap = v.position[0] - ego.position[0]
                bad |= target != lane and v.lane_index[2] == target and abs(gap) <= 10
                bad |= action == 3 and v.lane_index[2] == lane and 0 < gap < 5 + 1.5 * ego.speed
            self.violations += bool(bad)
            self.steps += 1
            return self.env.step(action)

    watch = Traffic(gym.make("highway-fast-v0"))
    env = gx.GuardedEnv(watch, highway.driving, state=highway.traffic, embedding=highway.embedding,
                        unsafe_event=highway.unsafe_event)  # fmt: skip
    env.action_space.seed(0)
    for episode in range(8):
        env.reset(seed=episode)
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
    assert watch.violations == 0
    assert env.audit.tally.corrections > 5
    assert env.audit.tally.episodes_watched == 8


def test_nobody_falls_into_a_hole_of_a_frozen_lake_without_slipping():
    lake = gym.make("FrozenLake-v1", is_slippery=False)
    table = lake.unwrapped.P
    holes = set(np.flatnonzero(lake.unwrapped.desc.ravel() == b"H").tolist())
    mask = np.array([[table[s][a][0][1] not in holes for a in range(4)] for s in table])
    env = gx.GuardedEnv(lake, gx.mask_rule(lambda s: mask[int(s)], name="hole"))
    env.action_space.seed(0)
    reached = 0
    for episode in range(60):
        env.reset(seed=episode)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert int(observation) not in holes
            reached += reward
            over = terminated or truncated
    assert len(holes) == 4
    assert reached > 0
    assert env.audit.tally.rules["hole"].blocked > 50


# --- stable-baselines3 -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of the peer's own making
@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC"])
def test_agents_of_stable_baselines3_train_under_guard_without_a_violation(algorithm):
    import stable_baselines3 as sb3
    import torch

    torch.set_num_threads(1)
    if algorithm == "SAC":
        watch = Watch(gym.make("Pendulum-v1"))
        rule = gx.bounds_rule(lambda s: ([-1.0 - float(s[0])], [1.0 + abs(float(s[2])) / 8]), name="torque")
        options, steps = {"learning_starts": 200, "batch_size": 64}, 2000

        def holds(s, a):
            return -1.0 - s[0] <= a[0] <= 1.0 + abs(s[2]) / 8
    else:
        watch = Watch(gym.make("CartPole-v1"))
        rule = gx.mask_rule(lambda s: np.array([s[2] > -0.02, s[2] < 0.02]), name="lean")
        options = {"n_steps": 512} if algorithm == "PPO" else {"learning_starts": 200}
        steps = 3000

        def holds(s, a):
            return s[2] > -0.02 if a == 0 else s[2] < 0.02

    env = gx.GuardedEnv(watch, rule)
    getattr(sb3, algorithm)("MlpPolicy", env, seed=0, device="cpu", **options).learn(steps)
    assert len(watch.executed) >= steps
    assert all(holds(s.astype(np.float64), a.astype(np.float64)) for s, a in watch.executed)
    assert env.audit.tally.projected > 100
    assert env.audit.tally.proposals == len(watch.executed)


def test_seeding_or_sampling_a_space_is_not_another_guard():
    rule = gx.bounds_rule(lambda state: ([-0.5], [0.5]), name="half")
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    before = gx.Guardian(space, rule).fingerprint
    space.seed(3)
    space.sample()
    assert gx.Guardian(space, rule).fingerprint == before
    assert gx.Guardian(gym.spaces.Box(-1, 2, (1,), np.float32), rule).fingerprint != before
