"""Videos show every step, and which ones the guard changed."""

import re
import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import pytest
from tiny_runs import tiny_run
from two_temptations import TASK

import rlpd_gx as gx
from rlpd_gx.deploy.export import Export, load_policy
from rlpd_gx.deploy.play import BORDERS, LINE, MARGIN, PROPOSED, Artist, Scene, drawable, play, scenes
from rlpd_gx.loop.evaluate import evaluate
from rlpd_gx.loop.resume import load_learner

RULES = """
import numpy as np
import rlpd_gx as gx

@gx.mask_rule(name="not left when leaning")
def lean(observation):
    return np.array([observation[2] < 0.0, True])

@gx.mask_rule(name="no fire after the start")
def quiet(ram):
    return np.array([True, False, True, False, True, False])

@gx.bounds_rule(name="small")
def small(observation):
    return np.full(1, -1.0), np.full(1, 1.0)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "play_rules.py").write_text(RULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def pole(home):
    # still random
    return tiny_run(home / "pole", env="CartPole-v1", rules="play_rules:lean", learning_starts=100)


@pytest.fixture(scope="module")
def pong(home):
    kwargs = {"max_steps": 40}
    return tiny_run(home / "pong", env="Atari/Pong-ram", rules="play_rules:quiet", env_kwargs=kwargs)


def frames(video):
    """Every frame [n, height, width, 3], from ffmpeg itself: the readers of imageio leave pipes open."""
    program = imageio_ffmpeg.get_ffmpeg_exe()
    told = subprocess.run([program, "-i", video], capture_output=True, text=True).stderr
    width, height = map(int, re.search(r"Video: .* (\d+)x(\d+)", told).groups())
    command = [program, "-i", video, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3).astype(int)


def bordered(frame):
    """Whether the upper edge has the colour of a correction, as far as a video keeps colours."""
    return bool((np.abs(frame[2, 20:-20] - BORDERS[gx.Status.PROJECTED]).mean(axis=0) < 40).all())


@pytest.mark.parametrize("name", ["pole", "pong"])
def test_the_video_marks_exactly_the_corrections(request, name, tmp_path):
    run = request.getfixturevalue(name)
    policy = load_policy(run, seed=5)
    env = drawable(policy)
    expected = [
        scene.verdict is not None and scene.verdict.corrected
        for seed in (5, 6)
        for scene in scenes(policy, env, seed, sample=True)
    ]
    env.close()
    played = play(run, tmp_path / "video.mp4", episodes=2, seed=5, sample=True)
    assert [bordered(frame) for frame in frames(tmp_path / "video.mp4")] == expected
    assert len(expected) == played.frames == played.steps + 2
    assert 0 < sum(expected) == played.corrections < played.steps


def test_returns_are_those_of_an_evaluation_and_of_the_export(pole, tmp_path):
    learner, environments = load_learner(pole)
    returns = evaluate(learner, environments, 2, 11, sample=False).returns
    Export.of_run(pole).write(tmp_path / "policy")
    for folder in (pole, tmp_path / "policy"):
        assert play(folder, tmp_path / "video.mp4", episodes=2, seed=11).returns == returns


def test_the_film_of_a_classifier_shows_its_vetoes(tmp_path):
    """Each episode is one step, in which the Learner wants the unsafe action."""
    settings = TASK | {"env_kwargs": {"length": 1}, "utd": 1, "normalise": False, "steps": 400}
    run = tiny_run(tmp_path / "run", guard="classifier", **settings)
    played = play(run, tmp_path / "video.mp4", episodes=3)
    assert (played.corrections, played.returns) == (3, [0.0] * 3)
    drawn = play(
        tiny_run(tmp_path / "drawn", **TASK | {"steps": 60}, guard="replace"), tmp_path / "video.mp4"
    )
    assert drawn.returns == [0.0]  # the rules leave one action
    whole = Export.of_run(run)
    with pytest.MonkeyPatch.context() as patch:  # as an earlier version exported it: without its network
        patch.setattr(Export, "refuse_other_execution", lambda self: None)
        whole.write(tmp_path / "policy")
    with pytest.raises(gx.GxError, match="whose corrections follow from more than the rules"):
        play(tmp_path / "policy", tmp_path / "video.mp4")


def test_an_intervention_names_both_actions(pong):
    policy = load_policy(pong)
    env = drawable(policy)
    artist = Artist(env)
    env.reset(seed=0)
    verdict, other = (policy.guardian.certify(env.unwrapped.ale.getRAM(), np.int64(a)) for a in (1, 3))
    assert (
        artist._words(verdict)[0]
        == f"proposed FIRE   executed {env.unwrapped.action_meanings[verdict.action]}"
    )
    frame = env.render()
    plain = artist.draw(Scene(frame, 0, 0.0, policy.guardian.certify(None, np.int64(0))))
    images = [artist.draw(Scene(frame, 0, 0.0, v)) for v in (verdict, other)]
    env.close()
    assert images[0].shape == images[1].shape == plain.shape
    assert bordered(images[0].astype(int))
    assert not bordered(plain.astype(int))
    assert (images[0] != images[1]).any()  # FIRE and RIGHTFIRE are different words


def test_components_of_a_box_are_bars(tmp_path, home):
    run = tiny_run(home / "pendulum", env="Pendulum-v1", rules="play_rules:small", steps=30)
    played = play(run, tmp_path / "video.mp4", sample=True, max_steps=10)
    film = frames(tmp_path / "video.mp4")
    assert (played.frames, played.steps) == (11, 10)
    marked = [bordered(frame) for frame in film]
    assert 0 < sum(marked) == played.corrections < 10
    for frame, moved in zip(film, marked, strict=True):
        bars = frame[500 + MARGIN + 3 * LINE :]
        orange = (np.abs(bars - PROPOSED).sum(axis=-1) < 90).sum()
        assert (orange > 50) == moved  # what was wanted is drawn only where it was not done


def test_what_cannot_be_drawn_is_a_sentence(home, tmp_path):
    run = tiny_run(home / "probe", env="Probe/LureDiscrete-v0", rules="rlpd_gx.envs.probes:lure_mask")
    with pytest.raises(gx.GxError, match="Probe/LureDiscrete-v0 cannot be drawn"):
        play(run, tmp_path / "video.mp4")
    assert list(tmp_path.iterdir()) == []


def test_places_and_names_that_do_not_fit(pole, tmp_path):
    with pytest.raises(gx.GxError, match=r"a video is a \.mp4 file"):
        play(pole, tmp_path / "video.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(gx.GxError, match="cannot be written"):
        play(pole, tmp_path / "file" / "video.mp4")


def test_a_missing_extra_is_a_sentence(pole, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(gx.GxError, match=r"imageio_ffmpeg is not installed; .*rlpd-gx\[video\]"):
        play(pole, tmp_path / "video.mp4")
