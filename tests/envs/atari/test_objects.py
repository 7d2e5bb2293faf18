"""Objects: the same as a slow reference, live and replayed, saved and restored; and they agree with the screen."""

import gzip
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.envs.atari.slow_objects import Table

from rlpd_gx.envs import atari
from rlpd_gx.envs.atari import expressions
from rlpd_gx.envs.atari.agreement import boxes_agree
from rlpd_gx.envs.atari.games import TABLES, read_table
from rlpd_gx.envs.making import make
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import load

ROOT = Path(__file__).parents[3]


def played(env, steps, seed=0):
    """Observations of random play."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    yield observation
    for _ in range(steps):
        observation, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        yield observation
        if terminated or truncated:
            return


@pytest.mark.parametrize("game", list(atari.GAMES))
def test_objects_are_those_of_the_slow_reference(game):
    env, table = atari.make(game, "objects"), Table(game)
    names = env.feature_names
    assert len(set(names)) == len(names) == env.observation_space.shape[0]
    for step, observation in enumerate(played(env, 80)):
        assert env.observation_space.contains(observation)
        if step in (1, 79):
            slow = table.observation(env.ram(), env.previous_ram())
            assert set(slow) == set(names)
            np.testing.assert_array_equal(observation, np.array([slow[n] for n in names], np.float32))


def test_a_wrong_table_is_noticed_by_the_slow_reference():
    env, table = atari.make("Pong", "objects"), Table("Pong")
    table.content["things"][0]["x"] = "ram[50]-49"
    *_, observation = played(env, 60)
    slow = table.observation(env.ram(), env.previous_ram())
    assert not np.allclose(observation, [slow[n] for n in env.feature_names])


@pytest.mark.parametrize(
    ("game", "observation"),
    [("Seaquest", "objects"), ("Krull", "objects"), ("Qbert", "objects"), ("Seaquest", "cells")],
)
def test_objects_survive_clone_and_snapshot(game, observation):
    env = atari.make(game, observation)
    list(played(env, 40))
    clone, snapshot = env.clone(), env.snapshot()

    def story(world):
        return np.array([world.step(a % world.action_space.n)[0] for a in range(12)])

    first = story(env)
    env.restore_clone(clone)
    np.testing.assert_array_equal(story(env), first)
    other = atari.make(game, observation)
    other.reset(seed=9)
    other.restore(snapshot)
    np.testing.assert_array_equal(story(other), first)


def test_a_step_after_a_restore_has_the_change_of_the_step_before():
    env = atari.make("Pong", "objects")
    list(played(env, 70))
    clone, previous = env.clone(), env.previous_ram().copy()
    env.advance(2)
    env.advance(2)
    env.restore_clone(clone)
    np.testing.assert_array_equal(env.previous_ram(), previous)
    assert (env.previous_ram() != env.ram()).any()


def test_made_by_name_and_fit_for_gymnasium():
    env = make("Atari/Pong-objects")
    assert env.unwrapped.feature_names[:3] == ("player present", "player x", "player y")
    check_env(env, skip_render_check=True)
    with pytest.raises(GxError, match="only objects and cells have names"):
        atari.make("Pong").feature_names  # noqa: B018


def test_the_same_from_a_replayed_log_from_ale_py_and_from_our_environment(tmp_path):
    ours = atari.make("Pong", "objects", noop_max=0)
    theirs = atari.ObjectsObservation(
        gym.make("ALE/Pong-v5", frameskip=4, repeat_action_probability=0.0, full_action_space=False)
    )
    assert theirs.feature_names == ours.feature_names
    rng = np.random.default_rng(3)
    seen = [ours.reset(seed=5)[0]]
    np.testing.assert_array_equal(theirs.reset(seed=5)[0], seen[0])
    record = {
        "seed": 5,
        "ale_actions": [],
        "rewards": [],
        "lives": [0],
        "terminated": False,
        "truncated": True,
    }
    for _ in range(120):
        action = int(rng.integers(6))
        observation, reward, *_ = ours.step(action)
        np.testing.assert_array_equal(theirs.step(action)[0], observation)
        seen.append(observation)
        record["ale_actions"].append(ours.actions[action].value)
        record["rewards"].append(reward)
        record["lives"].append(0)
    kwargs = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}
    log = tmp_path / "pong.json.gz"
    log.write_bytes(
        gzip.compress(json.dumps({"env_id": "ALE/Pong-v5", "kwargs": kwargs, "episodes": [record]}).encode())
    )
    data = load(log, options={"observation": "objects"}, root=tmp_path / "cache", progress=False)
    stored = data.timeline.columns()["observation"]
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored[: len(seen)], np.array(seen))


def test_a_table_cannot_do_more_than_calculate():
    for text in (
        "ram.size",
        "open(1)",
        "(lambda: 1)()",
        "'text'",
        "[r for r in ram]",
        "2**9**9",
        "1 << 99",
        "__import__",
    ):
        with pytest.raises(GxError, match=r"Any\.toml"):
            expressions.parse(text, {}, "Any.toml")
    with pytest.raises(GxError, match="defined by itself"):
        expressions.parse("a", {"a": "b + 1", "b": "a"}, "Any.toml")
    tree = expressions.parse("edge + ram[4 + i] % 16", {"edge": "signed(ram[0])"}, "Any.toml")
    read = expressions.function([expressions.for_one(tree, 2)], "Any.toml")
    assert read(bytes([255, 0, 0, 0, 0, 0, 0x23]), b"") == [-1 + 3]


@pytest.mark.parametrize("game", list(atari.GAMES))
def test_no_ram_image_breaks_a_table(game):
    objects, rng = atari.objects_of(game), np.random.default_rng(0)
    for _ in range(40):
        ram, was = rng.integers(0, 256, (2, 128), dtype=np.uint8)
        assert objects.space.contains(objects(ram, was))


@pytest.mark.parametrize("game", list(atari.GAMES))
def test_a_table_tells_all_about_its_game(game):
    table = read_table(TABLES / f"{game}.toml")
    assert table.name == game
    assert table.sources
    assert table.rules or table.trouble
    known = {thing.name for thing in table.things}
    assert all(set(rule.things) <= known for rule in table.rules)
    assert len(atari.make(game).actions) == table.actions
    assert set(table.player.moves) <= set(atari.make(game, full_action_space=True).action_meanings)


def test_mistakes_in_a_table_are_one_sentence(tmp_path):
    good = (TABLES / "Freeway.toml").read_text()
    for wrong, sentence in [
        (good.replace('role = "hazard"', 'role = "car"'), "has the role 'car'"),
        (good.replace("wrap =", "wraps ="), "has no field 'wraps'"),
        (good.replace('name = "car"\nrole', "role", 1), "lacks 'name'"),
        (good.replace("ram[14]", "ram[14"), "is no expression"),
        (good.replace('[event]\nkind = "knocked back"', '[event]\nkind = "bored"'), "event.kind is 'bored'"),
        ("= 3", "is no TOML file"),
    ]:
        assert wrong != good
        path = tmp_path / "Freeway.toml"
        path.write_text(wrong)
        with pytest.raises(GxError, match=r"Freeway\.toml") as error:
            atari.RamRules(atari.make(str(path), "objects"))
        assert sentence in str(error.value)


def test_boxes_show_something_and_wrong_ones_do_not(tmp_path):
    found = boxes_agree("Freeway", 120)
    assert found["car"]["boxes"] >= 100
    assert found["car"]["share"] > 0.95
    wrong = tmp_path / "Freeway.toml"
    wrong.write_text((TABLES / "Freeway.toml").read_text().replace("171 - 16*i", "3 - i"))
    assert boxes_agree(str(wrong), 120)["car"]["share"] < 0.5


def test_the_committed_boxes_agree_with_the_screen():
    """Every game, every kind of object that was seen; what agrees less is named with its reason in docs/atari.md."""
    games = json.loads((ROOT / "results" / "atari-boxes.json").read_text())["games"]
    assert list(games) == sorted(atari.GAMES)
    for name, game in games.items():
        assert set(game["objects"]) <= {"player", *(thing.name for thing in atari.GAMES[name].things)}
        assert game["objects"]["player"]["share"] > 0.8, name
    shares = [
        kind["share"] for game in games.values() for kind in game["objects"].values() if kind["boxes"] >= 10
    ]
    assert np.median(shares) > 0.95
    assert np.mean(np.array(shares) > 0.8) > 0.85
