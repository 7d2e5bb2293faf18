"""The Atari task: determinism, restoring, pixels as in Gymnasium, lives and clipping."""

import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.envs import atari
from rlpd_gx.envs.making import make
from rlpd_gx.loop.environments import Environments

EVERY = list(atari.GAMES)


def actions_of(env, count, seed=0):
    return np.random.default_rng(seed).integers(env.action_space.n, size=count).tolist()


def play(env, actions):
    """(observations, rewards, infos) of these actions; a new game starts where one ends."""
    observations, rewards, infos = [], [], []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        infos.append(info)
        if terminated or truncated:
            observations.append(env.reset()[0])
    return np.array(observations), rewards, infos


def same(one, other):
    return np.array_equal(one[0], other[0]) and one[1:] == other[1:]


@pytest.mark.parametrize("game", EVERY)
def test_same_seed_same_game_and_restoring_gives_back_the_same_future(game):
    env, other = atari.make(game), atari.make(game)
    first, info = env.reset(seed=7)
    assert first.shape == (2, 128)
    assert env.action_space.n == atari.GAMES[game].actions
    assert (first[0] == first[1]).all()
    start = actions_of(env, 50)
    begun = play(env, start)
    clone, snapshot = env.clone(), env.snapshot()
    future = actions_of(env, 40, seed=1)
    expected = play(env, future)
    play(env, actions_of(env, 30, seed=2))
    env.restore_clone(clone)
    assert same(play(env, future), expected)

    other.restore(snapshot)  # into an emulator that has never run
    assert (other.ram() == snapshot["ram"]).all()
    assert same(play(other, future), expected)
    again, info_again = other.reset(seed=7)  # and after another past, the seed alone decides
    assert (again == first).all()
    assert info_again == info
    assert same(play(other, start), begun)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_restoring_covers_chance_and_the_games_that_follow(sticky):
    options = {"sticky": sticky, "max_steps": 15}
    env, other = atari.make("KungFuMaster", **options), atari.make("KungFuMaster", **options)
    env.reset(seed=3)
    play(env, actions_of(env, 20))
    snapshot, clone = env.snapshot(), env.clone()
    future = actions_of(env, 60, seed=1)  # four more games, with other no-op starts
    expected = play(env, future)
    other.restore(snapshot)
    assert same(play(other, future), expected)
    env.restore_clone(clone)
    assert same(play(env, future), expected)
    other.reset(seed=4)
    assert not same(play(other, future), expected)


@pytest.mark.parametrize("steps", [0, 1, 25])
@pytest.mark.parametrize("noop_max", [0, 30])
def test_qbert_survives_the_bit_its_emulator_states_lack(noop_max, steps):
    env, other = (atari.make("Qbert", noop_max=noop_max) for _ in range(2))
    env.reset(seed=0)
    play(env, actions_of(env, steps))
    clone, snapshot = env.clone(), env.snapshot()
    future = actions_of(env, 30, seed=1)
    expected = play(env, future)
    env.restore_clone(clone)
    assert same(play(env, future), expected)
    env.reset()
    env.restore_clone(clone)
    assert same(play(env, future), expected)
    other.restore(snapshot)
    assert same(play(other, future), expected)


FRESH_PROCESS = """
import hashlib, sys
import numpy as np
from rlpd_gx.envs import atari
stored = dict(np.load(sys.argv[1]))
import json
env = atari.make("Qbert", "pixels")
env.restore({**json.loads(str(stored.pop("plain"))), **stored})
digest = hashlib.sha256()
for action in range(40):
    observation, reward, *_ = env.step(action % env.action_space.n)
    digest.update(observation.tobytes() + str(reward).encode())
print(digest.hexdigest())
"""


def test_a_snapshot_goes_on_in_a_fresh_process_without_pickle(tmp_path):
    import hashlib

    env = atari.make("Qbert", "pixels")
    env.reset(seed=5)
    play(env, actions_of(env, 30))
    snapshot = env.snapshot()
    arrays = {name: value for name, value in snapshot.items() if isinstance(value, np.ndarray)}
    plain = json.dumps({name: value for name, value in snapshot.items() if name not in arrays})
    np.savez(tmp_path / "state.npz", plain=plain, **arrays)
    digest = hashlib.sha256()
    for action in range(40):
        observation, reward, *_ = env.step(action % env.action_space.n)
        digest.update(observation.tobytes() + str(reward).encode())
    command = [sys.executable, "-c", FRESH_PROCESS, str(tmp_path / "state.npz")]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert output.strip() == digest.hexdigest()


@pytest.mark.parametrize("game", ["Amidar", "Breakout", "Qbert", "Seaquest"])
def test_pixels_are_those_of_atari_preprocessing(game):
    import ale_py

    gymnasium.register_envs(ale_py)
    ours = atari.make(game, "pixels")
    theirs = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)
    theirs = gymnasium.wrappers.AtariPreprocessing(theirs, noop_max=30)
    ended = False
    for seed in (0, 1):
        mine, expected = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
        assert mine.shape == (4, 84, 84)
        assert (mine == expected).all()  # the first frame, four times
        held = np.repeat(actions_of(ours, 100, seed), 4 if seed else 1)
        for action in held.tolist():
            mine, reward, terminated, _, _ = ours.step(action)
            expected, their_reward, their_end, _, _ = theirs.step(action)
            assert (mine[-1] == expected).all()
            assert (reward, terminated) == (their_reward, their_end)
            if terminated:
                ended = True
                break
    assert ended == (game in ("Breakout", "Qbert", "Seaquest"))  # seen to their last frame


def test_the_stack_is_the_last_frames_oldest_first():
    env = atari.make("Seaquest", "pixels")
    newest = [env.reset(seed=0)[0][-1]] * 4
    for action in actions_of(env, 20):
        observation, *_ = env.step(action)
        newest.append(observation[-1].copy())
        assert (observation == newest[-4:]).all()
        observation[:] = 0  # what a caller does to an observation stays with the caller
    assert len(np.unique(newest, axis=0)) > 15


@pytest.mark.parametrize("observation", ["ram", "pixels"])
def test_the_episode_of_a_life_is_a_part_of_the_same_game(observation):
    whole = atari.make("Breakout", observation)
    lives = atari.make("Breakout", observation, life_loss_ends=True, clip_rewards=True)
    whole.reset(seed=2)
    lives.reset(seed=2)
    actions, lost, over = iter(actions_of(whole, 3000)), 0, False
    while not over:
        action = next(actions)
        full, reward, over, _, info = whole.step(action)
        part, clipped, ended, _, part_info = lives.step(action)
        assert (full == part).all() or lost  # after a lost life the stacks differ for a while
        assert (full[-1] == part[-1]).all()
        assert part_info == info
        assert clipped == np.sign(reward)
        assert info["raw_reward"] == reward
        assert ended == (info["unsafe_event"] or over)
        if ended and not over:
            lost += 1
            assert not info["game_over"]
            with pytest.raises(gymnasium.error.ResetNeeded):
                lives.step(0)
            stack, info = lives.reset()
            assert (stack == stack[-1]).all()
            assert (stack[-1] == whole.step(0)[0][-1]).all()  # the game went on, with one NOOP
            assert info["steps"] == lives.clone().play.steps > 0
    assert lost == 4
    assert part_info["game_over"]
    _, info = lives.reset()
    assert (info["steps"], info["score"], info["lives"]) == (0, 0, 5)


@pytest.mark.parametrize(("after", "continues"), [(0, False), (1, False), (2, True)])
def test_a_life_lost_near_the_limit_ends_the_game(after, continues):
    """A reset needs room for its NOOP and one more step: without that, a new game begins, and `info` says so."""
    probe = atari.make("Breakout", life_loss_ends=True)
    probe.reset(seed=2)
    actions, lost = iter(actions_of(probe, 3000)), False
    while not lost:
        *_, lost, _, info = probe.step(next(actions))
    env = atari.make("Breakout", life_loss_ends=True, max_steps=info["steps"] + after)
    environments = Environments([env], lambda sets: np.zeros(0, np.uint8), 2, None)
    environments.reset(np.ones(1, bool), [2])
    for action in actions_of(env, info["steps"]):
        transition = environments.step(np.array([action]))
    assert (transition.terminated[0], transition.truncated[0]) == (True, False)
    assert [episode.length for episode in environments.finished] == ([] if continues else [info["steps"]])
    _, info = env.reset()
    assert (info["steps"] > 0) == continues


def test_what_happens_in_the_step_of_a_reset_is_told(monkeypatch):
    """Rare in play, so the emulator's step is real and only its verdict is replaced."""
    env = atari.make("Breakout", life_loss_ends=True)
    member = Environments([env], lambda sets: np.zeros(0, np.uint8), 2, None).members[0]
    member.reset(2)
    actions, lost = iter(actions_of(env, 3000)), False
    while not lost:
        _, lost, _, _ = member.step(next(actions))
    before, advance = member.unsafe_events, env.advance
    monkeypatch.setattr(env, "advance", lambda action: (advance(action)[0], True))
    member.reset()
    assert (before, member.unsafe_events) == (1, 2)


def test_a_game_is_cut_after_max_steps():
    env = atari.make("Pong", max_steps=10)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(10)]
    assert ends == [(False, False)] * 9 + [(False, True)]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_actions_and_their_embedding():
    env = atari.make("Seaquest", full_action_space=True)
    near = dict(zip(env.action_meanings, env.embedding.tolist(), strict=True))
    assert len(near) == 18
    assert near["NOOP"] == [0, 0, 0]
    assert near["FIRE"] == [0, 0, 0.5]
    assert near["UPLEFTFIRE"] == [-1, 1, 0.5]
    assert near["DOWNRIGHT"] == [1, -1, 0]
    assert atari.make("Freeway").action_meanings == ("NOOP", "UP", "DOWN")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_vectors(asynchronous):
    many = atari.make_vec("Boxing", 2, asynchronous=asynchronous, noop_max=5)
    one = atari.make("Boxing", noop_max=5)
    observations, _ = many.reset(seed=[8, 9])
    assert (observations[1] == one.reset(seed=9)[0]).all()
    observations, *_, info = many.step(np.array([3, 4]))
    single, *_, single_info = one.step(4)
    assert (observations[1] == single).all()
    assert info["lives"][1] == single_info["lives"]
    many.close()


def test_rendering_in_colour():
    env = atari.make("Pong", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)


def test_gymnasium_finds_nothing_to_complain_about():
    from gymnasium.utils.env_checker import check_env

    check_env(atari.make("Freeway", max_steps=50), skip_render_check=True)


def test_making_by_name():
    env = make("Atari/MsPacman-pixels", sticky=0.25)
    assert env.settings["sticky"] == 0.25
    assert env.spec.id == "Atari/MsPacman-pixels"
    assert gx.envs.atari.make("ms_pacman").game is gx.envs.atari.GAMES["MsPacman"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make("Atari/Pingpong-ram"), "'Pingpong' is not one of the 26.*Alien, .*UpNDown"),
        (lambda: make("Atari/Pong"), "Atari/GAME-ram"),
        (lambda: atari.make("Pong", "rgb"), "one of: ram, pixels"),
        (lambda: atari.make("Pong", frame_skip=0), "frame_skip 0.*at least 1"),
        (lambda: atari.make("Pong", sticky=1.5), r"sticky 1\.5"),
        (lambda: atari.make("Pong", render_mode="human"), "rgb_array"),
        (
            lambda: atari.make("Pong").restore(atari.make("Pong", sticky=0.5).snapshot()),
            r"sticky 0\.5, this environment has 0\.0",
        ),
    ],
)
def test_mistakes_are_sentences(call, message):
    with pytest.raises(gx.GxError, match=message):
        call()
