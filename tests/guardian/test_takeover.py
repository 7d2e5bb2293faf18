"""A person takes over inside the guard: what they did is what ran, for rules, audit and counts."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from line_world import NOT_MARKOV, RATE, Line

import rlpd_gx as gx


class Assisted(gym.Wrapper):
    """A person takes over in some steps of each episode, and the wrapper reports it as those of HIL-SERL do."""

    def __init__(self, env, person):
        super().__init__(env)
        self.person = person  # step -> action

    def reset(self, **kwargs):
        self.t = 0
        return self.env.reset(**kwargs)

    def step(self, action):
        taken = self.person.get(self.t)
        self.t += 1
        *outcome, info = self.env.step(action if taken is None else np.array(taken))
        return *outcome, info if taken is None else info | {"intervene_action": np.array(taken)}


# five steps, two of them a person's
PERSON = {1: np.array([0.8], np.float32), 4: np.array([-1.0], np.float32)}


def test_after_a_takeover_the_persons_action_is_the_previous_one_and_is_counted(tmp_path):
    with pytest.warns(UserWarning, match=NOT_MARKOV):
        env = gx.GuardedEnv(Assisted(Line(), PERSON), RATE, audit=tmp_path / "audit.jsonl")
    env.reset(seed=0)
    ran, verdicts = [], []
    for _ in range(5):
        *_, info = env.step(np.array([0.8], np.float32))
        ran.append(float(env.unwrapped.received[0]))
        verdicts.append(info["guardian"])
    # a rate limit of 0.1, broken by nobody but the person
    assert ran == pytest.approx([0.1, 0.8, 0.8, 0.8, -1.0], abs=1e-6)
    assert [float(v.action[0]) for v in verdicts] == ran
    assert [str(v.status) for v in verdicts] == ["projected", "projected", "allowed", "allowed", "allowed"]
    assert [v.executed_margin < 0 for v in verdicts] == [False, True, False, False, True]
    assert verdicts[1].executed_margin == pytest.approx(0.2 - 0.8, abs=1e-6)
    tally = env.audit.tally
    assert (tally.proposals, tally.corrections, tally.forbidden_executed) == (5, 2, 2)
    # the file tells the same, also of an episode that has not ended
    again, events = gx.Audit.read(tmp_path / "audit.jsonl")
    assert again.tally == tally
    assert [event["event"] for event in events] == ["correction", "correction", "takeover", "takeover"]
    unended = "\n".join((tmp_path / "audit.jsonl").read_text().splitlines()[:-1])
    (tmp_path / "unended.jsonl").write_text(unended)
    cut = gx.Audit.read(tmp_path / "unended.jsonl")[0].tally
    assert (cut.proposals, cut.allowed, cut.forbidden_executed) == (5, 3, 2)


def test_a_person_may_do_in_monitor_mode_what_was_not_proposed():
    """A forbidden proposal that never ran is not counted as executed."""
    env = gx.GuardedEnv(
        Assisted(Line(), {0: [0.1]}), gx.bounds_rule(lambda s: ([-0.2], [0.2])), mode="monitor"
    )
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.array([1.0], np.float32))
    assert (env.audit.tally.forbidden_proposals, env.audit.tally.forbidden_executed) == (2, 1)


def test_a_person_chooses_among_listed_actions():
    class Buttons(Line):
        action_space = gym.spaces.Discrete(3)

        def step(self, action):
            return super().step(np.array([float(action)]))

    env = gx.GuardedEnv(
        Assisted(Buttons(), {0: 2, 1: 0}), gx.mask_rule(lambda s: np.array([True, True, False]))
    )
    env.reset(seed=0)
    verdicts = [env.step(1)[-1]["guardian"] for _ in range(3)]
    assert [int(v.action) for v in verdicts] == [2, 0, 1]
    assert env.audit.tally.forbidden_executed == 1


def test_what_the_last_step_reported_is_not_repeated_where_the_episode_is_stopped():
    def deaf(state):
        if state[0] > 0.5:
            raise RuntimeError("no answer")
        return [-1.0], [1.0]

    rule = gx.bounds_rule(deaf)
    env = gx.GuardedEnv(Assisted(Line(), {0: [0.8]}), rule, unsafe_event=lambda *step: True)
    env.reset(seed=0)
    env.step(np.array([0.0], np.float32))
    *_, info = env.step(np.array([0.0], np.float32))
    assert set(info) == {"guardian_stop"}


@pytest.mark.filterwarnings("ignore:.*is not batched")
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_takeovers_in_a_vector_are_those_of_its_members_alone(mode):
    """Two members, one of them with a person, who also acts in the last step of an episode."""
    vector = SyncVectorEnv([Line, lambda: Assisted(Line(), PERSON)], autoreset_mode=mode)
    with pytest.warns(UserWarning, match=NOT_MARKOV):
        env = gx.GuardedVectorEnv(vector, RATE)
    env.reset(seed=0)
    ran, reported = [], []
    for _ in range(12):
        *_, infos = env.step(np.full((2, 1), 0.8, np.float32))
        if infos["_guardian"][1]:
            reported.append(float(infos["guardian"][1].action[0]))
            ran.append(float(vector.envs[1].unwrapped.received[0]))
    assert ran == reported
    assert ran[:10] == pytest.approx([0.1, 0.8, 0.8, 0.8, -1.0] * 2, abs=1e-6)
    taken = sum(i % 5 in PERSON for i in range(len(ran)))
    assert env.audit.tally.forbidden_executed == taken
