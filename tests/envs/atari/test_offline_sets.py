"""The offline sets of the package: every reward and life again, in any observation, and with safe sets."""

import gzip
import json
import shlex

import gymnasium
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.cli.collect import collect
from rlpd_gx.envs.atari import GAMES, make
from rlpd_gx.envs.atari.games import TABLES
from rlpd_gx.envs.atari.lookahead import Emulator
from rlpd_gx.envs.atari.offline import FOLDER, sets_of
from rlpd_gx.envs.atari.planner import PlanSearch
from rlpd_gx.envs.description import describe, game_of
from rlpd_gx.loop.offline_rules import while_replayed
from rlpd_gx.replay.offline import load
from rlpd_gx.replay.offline.formats import action_log
from rlpd_gx.safe_sets import decode

LOGS = sorted(FOLDER.glob("*/*.json.gz"))
SLICE_STEPS = 120


def log_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def cut(path, folder, steps=SLICE_STEPS):
    """The first steps of a log as a log of their own."""
    log = log_of(path)
    episode = log["episodes"][0]
    part = min(steps, len(episode["ale_actions"]) - 1)
    episode |= {
        "ale_actions": episode["ale_actions"][:part],
        "rewards": episode["rewards"][:part],
        "lives": episode["lives"][: part + 1],
        "terminated": False,
        "truncated": True,
    }
    log["episodes"] = [episode]
    made = folder / path.name
    made.write_bytes(gzip.compress(json.dumps(log).encode()))
    return made, log


def names(path):
    return f"{path.parent.name}-{path.name.partition('.')[0]}"


@pytest.mark.parametrize("lazy", [False, True])
def test_states_in_which_a_rule_fails_are_not_known(lazy, tmp_path, monkeypatch):
    (tmp_path / f"failing_rules_{lazy}.py").write_text(
        "import rlpd_gx as gx\n"
        f"@gx.rule(lazy={lazy})\ndef broken(state, action):\n    raise RuntimeError('sensor lost')\n"
        "def state(env, observation, info):\n    return 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made, _ = cut(FOLDER / "planner" / "Pong.json.gz", tmp_path, steps=30)
    live = while_replayed(made, None, f"failing_rules_{lazy}:broken", "Atari/Pong-ram")
    (episode,) = action_log.read(made, "ram", safe_set=live.safe_set).episodes
    assert episode.safe_sets_known is None or not episode.safe_sets_known.any()


def test_every_game_has_a_planned_set_and_all_of_them_are_small():
    for name in ("planner", "planner-30k"):
        assert {game for game in GAMES if name in sets_of(game)} == set(GAMES)
    for spelled in ("ms_pacman", "mspacman", "MSPACMAN"):
        assert sets_of(spelled) == sets_of("MsPacman")
        assert game_of(f"Atari/{spelled}-ram") == "MsPacman"
    assert game_of("Hopper-v5") is None
    assert sum(path.stat().st_size for path in LOGS) < 5_000_000


@pytest.mark.parametrize("path", [p for p in LOGS if p.parent.name != "planner-30k"], ids=names)
def test_a_slice_replays_into_objects_to_its_recorded_rewards(path, tmp_path):
    made, log = cut(path, tmp_path)
    (episode,) = action_log.read(made, "objects").episodes
    assert episode.rewards.tolist() == log["episodes"][0]["rewards"]
    assert np.isfinite(episode.observations).all()
    assert len(episode.observations) == len(episode.rewards) + 1


@pytest.mark.long
@pytest.mark.parametrize("path", LOGS, ids=names)
def test_the_whole_log_replays(path):
    log = log_of(path)
    for episode, record in zip(action_log.read(path, "objects").episodes, log["episodes"], strict=True):
        assert episode.rewards.tolist() == record["rewards"]


@pytest.mark.parametrize("path", [p for p in LOGS if p.parent.name.startswith("planner")], ids=names)
def test_a_planned_log_says_how_it_was_made(path):
    log = log_of(path)
    steps = sum(len(episode["ale_actions"]) for episode in log["episodes"])
    score = sum(sum(episode["rewards"]) for episode in log["episodes"])
    assert sum(part["steps"] for part in log["parts"]) == steps
    assert sum(part["score"] for part in log["parts"]) == pytest.approx(score)
    for part in log["parts"]:
        words = shlex.split(part["command"])
        assert words[words.index("--policy") + 1] == "planner"
        assert words[words.index("--seed") + 1] == str(part["seed"])
        assert part["simulated_steps"] > 0


@pytest.mark.parametrize("game", list(GAMES))
def test_the_longer_set_continues_the_shorter_one(game):
    short, long = (log_of(sets_of(game)[name]) for name in ("planner", "planner-30k"))
    assert long["episodes"][: len(short["episodes"])] == short["episodes"]
    assert long["parts"][: len(short["parts"])] == short["parts"]
    assert sum(part["steps"] for part in long["parts"]) == 30_000


def test_a_slice_replays_with_safe_sets_and_into_ram_and_pixels(tmp_path):
    made, _ = cut(FOLDER / "planner" / "Seaquest.json.gz", tmp_path, 40)
    rules = "rlpd_gx.envs.atari:RamRules"
    live = while_replayed(made, None, rules, "Atari/Seaquest-objects")
    (episode,) = action_log.read(made, "objects", safe_set=live.safe_set).episodes
    assert episode.safe_sets_known.all()
    assert len(episode.safe_sets) == 41
    for observation, shape in (("ram", (128,)), ("pixels", (84, 84))):
        (episode,) = action_log.read(made, observation).episodes
        assert episode.observations.shape == (41, *shape)


def test_a_look_ahead_is_asked_about_what_ran_and_about_all_actions_in_a_share_of_the_states(tmp_path):
    made, _ = cut(FOLDER / "planner" / "Seaquest.json.gz", tmp_path, 60)
    live = while_replayed(made, None, "rlpd_gx.envs.atari:Lookahead", "Atari/Seaquest-ram")
    (episode,) = action_log.read(made, "ram", safe_set=live.safe_set).episodes
    sets = decode(episode.safe_sets, {"kind": "mask", "n": 18})
    rows = np.arange(60)
    assert episode.safe_sets_known.all()
    assert sets.tested[rows, episode.actions].all()
    assert 1 <= sets.tested[rows].all(axis=1).sum() <= 20
    assert sets.tested[-1].all(), "nothing ran in the last state"


def played(game, steps, action_of, folder):
    """A log of play in our environment, and the unsafe events that were reported there."""
    env = make(game, noop_max=0)
    _, info = env.reset(seed=1)
    record = {"seed": 1, "ale_actions": [], "rewards": [], "lives": [info["lives"]]}
    happened, terminated = [], False
    while len(happened) < steps and not terminated:
        action = action_of(env)
        _, reward, terminated, _, info = env.step(action)
        happened.append(info["unsafe_event"])
        record["ale_actions"].append(env.actions[action].value)
        record["rewards"].append(reward)
        record["lives"].append(info["lives"])
    kwargs = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}
    episode = {**record, "terminated": terminated, "truncated": not terminated}
    made = folder / f"{game}.json.gz"
    log = {"env_id": f"ALE/{game}-v5", "kwargs": kwargs, "episodes": [episode]}
    made.write_bytes(gzip.compress(json.dumps(log).encode()))
    return made, np.array(happened), record


@pytest.mark.parametrize(("game", "steps"), [("Freeway", 300), ("Boxing", 400), ("Amidar", 5000)])
def test_a_replay_has_the_unsafe_events_of_the_live_game(game, steps, tmp_path):
    rng = np.random.default_rng(0)
    always_up = game == "Freeway"
    made, happened, record = played(
        game, steps, lambda env: 1 if always_up else int(rng.integers(env.action_space.n)), tmp_path
    )
    (episode,) = action_log.read(made).episodes
    assert happened.any()
    assert episode.unsafe_events.tolist() == happened.tolist()
    lost, negative = np.diff(record["lives"]) < 0, np.array(record["rewards"]) < 0
    if game == "Freeway":  # a chicken that is hit loses neither a life nor a point
        assert not lost.any()
        assert not negative.any()
    if game == "Amidar":  # the counter falls once more when the game ends
        assert lost[-1]
        assert not happened[-1]


def test_a_bundled_log_of_freeway_has_events_in_the_dataset_too(tmp_path, monkeypatch):
    monkeypatch.setenv("RLPD_GX_CACHE", str(tmp_path / "cache"))
    made, _ = cut(FOLDER / "scripted" / "Freeway.json.gz", tmp_path, 400)
    data = load(made)
    assert data.knows_unsafe_events
    assert data.timeline.unsafe_event.any()


def test_a_game_without_a_table_has_only_its_lives(tmp_path):
    for game, known in (("Enduro", False), ("SpaceInvaders", True)):
        log = log_of(FOLDER / "recorded" / "Pong.json.gz")
        with_game = gymnasium.make(f"ALE/{game}-v5", obs_type="ram", **log["kwargs"])
        _, info = with_game.reset(seed=0)
        record = {"seed": 0, "ale_actions": [0] * 400, "rewards": [], "lives": [info["lives"]]}
        for _ in range(400):
            _, reward, terminated, _, info = with_game.step(0)
            record["rewards"].append(reward)
            record["lives"].append(info["lives"])
        log |= {
            "env_id": f"ALE/{game}-v5",
            "episodes": [{**record, "terminated": terminated, "truncated": True}],
        }
        made = tmp_path / f"{game}.json.gz"
        made.write_bytes(gzip.compress(json.dumps(log).encode()))
        (episode,) = action_log.read(made).episodes
        assert (episode.unsafe_events is not None) == known
        if known:
            assert (episode.unsafe_events == (np.diff(record["lives"]) < 0)).all()
            assert episode.unsafe_events.any()


def test_data_converted_under_another_event_is_not_taken_from_the_cache(tmp_path):
    """The event is in the key of the cache: a table that is changed gives other data."""
    made, _ = cut(FOLDER / "planner" / "Freeway.json.gz", tmp_path, 20)
    before = action_log.meaning(made, {})
    table = (TABLES / "Freeway.toml").read_text().replace('kind = "knocked back"', 'kind = "negative reward"')
    (tmp_path / "Freeway.toml").write_text(table)
    assert action_log.meaning(made, {"table": str(tmp_path / "Freeway.toml")}) != before
    assert action_log.meaning(made, {"table": "Freeway"}) == before


def test_another_reward_is_refused(tmp_path):
    made, log = cut(FOLDER / "planner" / "Seaquest.json.gz", tmp_path, 30)
    log["episodes"][0]["rewards"][20] += 1
    made.write_bytes(gzip.compress(json.dumps(log).encode()))
    with pytest.raises(gx.GxError, match="step 20"):
        list(action_log.read(made).episodes)


def test_the_planner_is_repeatable_and_its_log_replays(tmp_path):
    written = []
    for name in ("one.json.gz", "two.json.gz"):
        out = tmp_path / name
        collect(env="ALE/Asterix-v5", out=out, policy="planner", steps=60, seed=3, format="action-log")
        written.append(log_of(out))
    assert written[0] == written[1]
    assert written[0]["simulated_steps"] > 60
    (episode,) = action_log.read(out).episodes
    assert episode.rewards.tolist() == written[0]["episodes"][0]["rewards"]


def test_planned_play_scores_more_than_random_play_and_is_not_felt_by_the_game():
    scores = {}
    for planned in (True, False):
        env, twin = make("Asterix"), make("Asterix")
        env.reset(seed=2)
        twin.reset(seed=2)
        rng, score = np.random.default_rng(2), 0.0
        search = PlanSearch(Emulator(env), rng)
        for _ in range(150):
            action = search(env) if planned else int(rng.integers(env.action_space.n))
            _, reward, over, _, info = env.step(action)
            assert twin.step(action)[4] == info
            score += reward
            if over:
                break
        scores[planned] = score
    assert scores[True] > scores[False]


def test_a_set_is_named_in_a_run():
    assert describe("Atari/Pong-objects").offline_sets.keys() == {"planner", "planner-30k", "recorded"}
    assert describe("Atari/Freeway-ram").offline_sets.keys() == {"planner", "planner-30k", "scripted"}
    assert not describe("CartPole-v1").offline_sets
    with pytest.raises(gx.GxError, match="comes with planner"):
        gx.train("Atari/Seaquest-objects", offline="recorded", steps=1)
