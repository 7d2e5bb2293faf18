"""Episodes that are replayed must be the episodes that were: nothing is shown that did not happen."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from tiny_runs import tiny_run
from two_temptations import TASK

from rlpd_gx.deploy.moments import KEPT, Moments
from rlpd_gx.deploy.pictures import png
from rlpd_gx.deploy.safe_set_shapes import Shapes
from rlpd_gx.errors import GxError
from rlpd_gx.loop.task import Task
from rlpd_gx.settings import from_flat

WALK = {"env": "small_worlds:Walk", "rules": "small_worlds:edge", "steps": 130, "evaluate_every": 130}


def training_episodes(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    before = {}
    for row in rows:
        if row["kind"] == "episode":
            first = before.get(row["env"], 0)
            before[row["env"]] = first + row["length"]
            yield {"kind": "training", "env": row["env"], "first": first, "length": row["length"]}, row


def played_again(folder):
    """The training environment of a run at its first reset, made without the code under test."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("command")
    env = Task(from_flat(config, "test")).make_env()
    env.reset(seed=config["seed"])
    return env


def decoded(picture):
    return np.asarray(Image.open(io.BytesIO(picture)))


def test_png_is_read_back_exactly():
    image = np.random.default_rng(0).integers(0, 256, (33, 47, 3), np.uint8)
    assert np.array_equal(decoded(png(image)), image)
    assert np.array_equal(decoded(png(image[:1])), image[:1])


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "walk", num_envs=2, **WALK)


def test_every_training_episode_is_replayed_as_it_was(walk):
    moments, seen = Moments(walk), 0
    for key, row in training_episodes(walk):
        found = moments.answer({"do": "episode", "episode": key})[0]
        steps = found["steps"]
        assert sum(steps["reward"]) == pytest.approx(row["return"])
        assert sum(s > 0 for s in steps["status"]) == row["corrections"]
        assert sum(steps["unsafe"]) == row["unsafe_events"]
        assert "every observation and executed action equals" in found["note"]
        seen += 1
    assert seen >= 4


def test_joint_actions_are_shown_by_number(tmp_path):
    folder = tiny_run(tmp_path / "run", env="small_worlds:Pair", steps=60, guard="none")
    moments = Moments(folder)
    for key, row in training_episodes(folder):
        found = moments.answer({"do": "episode", "episode": key})[0]
        assert sum(found["steps"]["reward"]) == pytest.approx(row["return"])
        assert found["space"]["names"][3] == "[1, 1]"
        assert all(0 <= action < 6 for action in found["steps"]["executed"])


def test_an_evaluation_is_played_again_from_its_seed(walk):
    result = json.loads((walk / "result.json").read_text())["evaluation"]
    moments = Moments(walk)
    for index, score in enumerate(result["returns"]):
        found = moments.answer({"do": "episode", "episode": {"kind": "evaluation", "index": index}})[0]
        assert sum(found["steps"]["reward"]) == pytest.approx(score)
        assert "the return equals the recorded one" in found["note"]


def test_random_proposals_of_an_evaluation_are_drawn_again(tmp_path):
    folder = tiny_run(tmp_path / "run", guard="random", evaluation_episodes=2, **WALK)
    moments = Moments(folder)
    for index in (1, 0):
        found = moments.answer({"do": "episode", "episode": {"kind": "evaluation", "index": index}})[0]
        assert "the return equals the recorded one" in found["note"]


def test_pictures_and_tries_belong_to_their_step(walk):
    """In any order, each step shows the state before it, and its rules are asked about that state."""
    moments = Moments(walk)
    key, _ = next(training_episodes(walk))
    steps = moments.answer({"do": "episode", "episode": key})[0]["steps"]
    env = played_again(walk)
    places = [env.unwrapped.place]
    for action in steps["proposed"]:
        env.step(action)
        places.append(env.unwrapped.place)
    order = np.random.default_rng(1).permutation(key["length"]).tolist()
    for step in [*order, key["length"]]:
        _, picture = moments.answer({"do": "frame", "episode": key, "step": step})
        assert decoded(picture)[0, :, 0].argmax() == places[step] + 20
    for step in order:
        moments.answer({"do": "frame", "episode": key, "step": step})  # as the page does
        for action in range(3):
            found, _ = moments.answer({"do": "try", "episode": key, "step": step, "action": action})
            mask = "1" + "01"[places[step] > -2] + "01"[places[step] < 2]
            assert found["masks"][0] == mask
            assert (found["status"] == "allowed") == (mask[action] == "1")


def test_an_episode_that_cannot_be_repeated_is_refused(tmp_path):
    folder = tiny_run(tmp_path / "run", **WALK | {"env": "small_worlds:Unsteady"})
    moments = Moments(folder)
    reasons = []
    for key, _ in training_episodes(folder):
        try:
            moments.answer({"do": "episode", "episode": key})
        except GxError as error:  # chance may repeat itself once
            reasons.append(str(error))
    assert reasons
    assert all("does not repeat itself" in reason for reason in reasons)


@pytest.fixture(scope="module")
def vetoed(tmp_path_factory):
    """A run whose Learner wants the unsafe action, and whose classifier has learned to veto it."""
    settings = TASK | {"env_kwargs": {"length": 1}, "utd": 1, "normalise": False, "steps": 400}
    return tiny_run(tmp_path_factory.mktemp("runs") / "classifier", guard="classifier", **settings)


def test_a_replay_has_the_vetoes_of_the_classifier(vetoed):
    moments = Moments(vetoed)
    for _ in range(2):
        found = moments.answer({"do": "episode", "episode": {"kind": "evaluation", "index": 0}})[0]
        assert (found["steps"]["proposed"], found["steps"]["executed"]) == ([1], [0])
        assert "the return equals the recorded one" in found["note"]
        moments.known.clear()
    replayed, reasons = 0, set()
    for key, row in training_episodes(vetoed):  # what it vetoed changed while it learned
        try:
            found = moments.answer({"do": "episode", "episode": key})[0]
            assert sum(found["steps"]["status"]) == row["corrections"]
            replayed += 1
        except GxError as error:
            reasons.add(str(error).partition(": ")[2])
    assert replayed > 200
    assert reasons == {"the corrections of --guard classifier follow from more than the state and its rules"}


def test_a_guard_that_draws_is_named_and_failed_replays_are_closed(tmp_path, monkeypatch):
    folder = tiny_run(tmp_path / "run", **WALK, guard="replace")
    closed = []
    monkeypatch.setattr("small_worlds.Walk.close", lambda self: closed.append(self))
    moments, reasons, all_keys = Moments(folder), [], list(training_episodes(folder))
    closed.clear()
    for key, _ in all_keys:
        try:
            moments.answer({"do": "episode", "episode": key})
        except GxError as error:
            reasons.append(str(error))
    assert reasons
    assert all("the corrections of --guard replace" in reason for reason in reasons)
    assert len(closed) - max(len(all_keys) - len(reasons) - KEPT, 0) == len(reasons)


def test_without_pictures_and_saved_states_verdicts_are_still_shown(tmp_path):
    folder = tiny_run(tmp_path / "run", **WALK | {"env": "small_worlds:Plain"})
    moments = Moments(folder)
    found = moments.answer({"do": "episode", "episode": {"kind": "evaluation", "index": 0}})[0]
    assert not found["drawn"]
    assert found["undrawn"]
    assert found["length"] > 0
    with pytest.raises(GxError, match="cannot be saved"):
        moments.answer({"do": "try", "episode": {"kind": "evaluation", "index": 0}, "step": 0, "action": 1})


@pytest.mark.parametrize(
    "wrong", [{"index": 0, "kind": "evaluation"}, {"kind": "training", "env": 9, "first": 0, "length": 5}]
)
def test_steps_and_episodes_that_do_not_exist(walk, wrong):
    with pytest.raises(GxError):
        Moments(walk).answer({"do": "frame", "episode": wrong, "step": 10_000})


def test_a_half_plane_is_drawn_as_it_is(tmp_path):
    """a_1 + a_2 <= 0.5 within [-1, 1]^2: intervals and outline have known ends."""
    folder = tiny_run(tmp_path / "run", env="small_worlds:Push", rules="small_worlds:gentle", steps=60)
    moments = Moments(folder)
    key = {"kind": "evaluation", "index": 0}
    moments.answer({"do": "episode", "episode": key})
    found, _ = moments.answer({"do": "try", "episode": key, "step": 3, "action": [1.0, 0.0]})
    assert found["status"] == "projected"
    assert found["executed"] == pytest.approx([0.75, -0.25])
    assert np.allclose(found["intervals"][0], [[-1, 0.75], [-1, -0.25]], atol=1e-5)
    outline = np.array(found["polygon"])
    assert (outline.sum(axis=1) <= 0.5 + 1e-5).all()
    assert np.abs(outline).max() <= 1 + 1e-6
    on_an_edge = np.isclose(outline.sum(axis=1), 0.5, atol=1e-4) | np.isclose(
        np.abs(outline).max(axis=1), 1, atol=1e-4
    )
    assert on_an_edge.all()
    with pytest.raises(GxError, match="no action"):
        moments.answer({"do": "try", "episode": key, "step": 3, "action": [3.0, 0.0]})


def test_a_game_goes_on_after_a_lost_life(tmp_path):
    """Atari: an episode of the page is a whole game, though each life ended an episode of the Learner."""
    folder = tiny_run(
        tmp_path / "run", env="Atari/Breakout-ram", env_kwargs={"max_episode_steps": 150}, steps=155,
        rules="rlpd_gx.envs.atari:RamRules", guard="none",
    )  # fmt: skip
    key, row = next(training_episodes(folder))
    moments = Moments(folder)
    found = moments.answer({"do": "episode", "episode": key})[0]
    assert found["length"] == row["length"]
    assert not found["enforced"]
    assert found["space"]["joystick"]
    assert found["resets"]
    env = played_again(folder)
    frames = [env.render()]
    for step, action in enumerate(found["steps"]["proposed"], 1):
        env.step(action)
        if step in found["resets"]:
            env.reset()
        frames.append(env.render())
    for step in np.random.default_rng(0).permutation(len(frames)).tolist():
        picture = decoded(moments.answer({"do": "frame", "episode": key, "step": step})[1])
        assert np.array_equal(picture, frames[step]), step


def test_shapes_of_verdicts_without_sets():
    class Space:
        shape = (2,)

    assert Shapes(Space(), []).as_json() == {"intervals": None}
