"""Videos of a policy under its guard, with proposed and executed actions."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx.deploy.export import Export, Policy
from rlpd_gx.errors import GxError, first_line, missing_extra
from rlpd_gx.guardian import guarded_layer
from rlpd_gx.types import Action, Array, Status, Verdict

LEAST_WIDTH, LEAST_HEIGHT = 320, 300  # smaller frames are enlarged by a whole number
LINE, MARGIN, BORDER, BARS = 20, 8, 6, 48  # pixels
PANEL, TEXT, EXECUTED, PROPOSED = (24, 24, 28), (235, 235, 235), (90, 200, 120), (250, 170, 50)
BORDERS = {Status.PROJECTED: (250, 170, 50), Status.FALLBACK: (220, 60, 60), Status.INEVITABLE: (220, 60, 60)}


@dataclass(frozen=True, eq=False)
class Scene:
    """One step: the frame in which the action was chosen, and what was decided. The last one has no verdict."""

    frame: Array
    step: int
    score: float
    """Return so far."""
    verdict: Verdict | None = None
    ending: str = ""


@dataclass(frozen=True)
class Played:
    """What the video shows."""

    returns: list[float]
    steps: int
    corrections: int
    frames: int


def play(
    path: Path,
    video: Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    sample: bool = False,
    max_steps: int | None = None,
) -> Played:
    """Play episodes of a run or an exported policy under its guard and write them as a video.

    A frame shows the state in which an action was chosen; each episode ends with the frame after its last step.
    """
    imageio, _ = _video_packages()
    if video.suffix != ".mp4":
        raise GxError(f"--out {video}: a video is a .mp4 file")
    policy = Policy(Export.find(path), seed)
    if policy.export.run is None:  # a run has all of its guard
        policy.export.refuse_other_execution()
    returns, steps, corrections, frames = [], 0, 0, 0
    with closing(drawable(policy)) as env, _whole(video) as unfinished:
        artist, rate = Artist(env), float(env.metadata.get("render_fps") or 30)
        with imageio.get_writer(unfinished, fps=rate, macro_block_size=2) as writer:
            for episode in range(episodes):
                for scene in scenes(policy, env, seed + episode, sample=sample, max_steps=max_steps):
                    writer.append_data(artist.draw(scene))
                    frames += 1
                    corrections += scene.verdict is not None and scene.verdict.corrected
                returns.append(scene.score)
                steps += scene.step
    return Played(returns, steps, corrections, frames)


def drawable(policy: Policy) -> gym.Env:
    """The environment of a policy behind its guard, able to render."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # lets MuJoCo render without a screen
    name = policy.export.about["env"]
    with closing(policy.export.task().make_env(evaluation=True)) as plain:
        if "rgb_array" not in plain.metadata.get("render_modes", ()):
            raise GxError(f"{name} cannot be drawn: rgb_array is not among the render_modes in its metadata")
    try:
        env = policy.export.task(render_mode="rgb_array").make_env(evaluation=True)
        env.reset(seed=0)
        frame = env.render()
    except GxError as error:
        raise GxError(f"{name} cannot be drawn: {error}") from None
    except Exception as error:  # each rendering package raises its own errors
        raise GxError(
            f"{name} cannot be drawn here: {first_line(error)} (for MuJoCo, MUJOCO_GL=egl or osmesa chooses how)"
        ) from error
    if not isinstance(frame, np.ndarray):
        raise GxError(f"{name} cannot be drawn: it renders {type(frame).__name__} instead of an image")
    return env


def scenes(
    policy: Policy, env: gym.Env, seed: int, *, sample: bool = False, max_steps: int | None = None
) -> Iterator[Scene]:
    """One episode, step by step, and how it ended."""
    observation, _ = env.reset(seed=seed)
    guarded, step, score, ending = guarded_layer(env), 0, 0.0, ""
    while not ending:
        frame = _frame(env)
        safe_set = None if guarded is None else policy.drawn_from(guarded.safe_set)
        proposed = policy.propose(observation, safe_set, sample=sample)
        observation, reward, terminated, truncated, info = env.step(proposed)
        if "guardian_stop" in info:
            ending = "stopped: no action may be executed"
            break
        verdict = info.get("guardian") or Verdict(proposed, proposed, Status.ALLOWED)
        yield Scene(frame, step, score, verdict)
        step, score = step + 1, score + float(info.get("raw_reward", reward))
        if terminated or truncated:
            ending = "terminated" if terminated else "truncated"
        elif step == max_steps:
            ending = "cut here"
    yield Scene(_frame(env), step, score, ending=ending)


class Artist:
    """Draws scenes: the frame, a border where the guard corrected, and a panel below."""

    def __init__(self, env: gym.Env) -> None:
        _, (self.image, self.draw_on, font) = _video_packages()
        self.font = font.load_default(size=14)
        self.space = env.action_space
        meanings = getattr(env.unwrapped, "action_meanings", ())
        self.meanings = tuple(meanings) if not callable(meanings) else ()

    def draw(self, scene: Scene) -> Array:
        """An image [height, width, 3], both even, as videos need it."""
        times = max(1, -(-LEAST_WIDTH // scene.frame.shape[1]), LEAST_HEIGHT // scene.frame.shape[0])
        frame = scene.frame.repeat(times, axis=0).repeat(times, axis=1)
        height, width = frame.shape[:2]
        bars = BARS if isinstance(self.space, gym.spaces.Box) else 0
        panel = 3 * LINE + bars + 2 * MARGIN
        canvas = self.image.new("RGB", (width + width % 2, height + panel + (height + panel) % 2), PANEL)
        canvas.paste(self.image.fromarray(frame), (0, 0))
        pen = self.draw_on.Draw(canvas)
        verdict = scene.verdict
        status = scene.ending if verdict is None else _status(verdict)
        lines = [f"step {scene.step}   return {scene.score:.1f}   {status}"]
        if verdict is not None:
            lines += self._words(verdict)
            if verdict.corrected:
                pen.rectangle((0, 0, width - 1, height - 1), outline=BORDERS[verdict.status], width=BORDER)
        for number, line in enumerate(lines):
            colour = TEXT if number == 0 or verdict is None or not verdict.corrected else PROPOSED
            pen.text((MARGIN, height + MARGIN + number * LINE), line, fill=colour, font=self.font)
        if verdict is not None and bars:
            self._bars(pen, verdict, width, height + MARGIN + 3 * LINE)
        return np.asarray(canvas)

    def _words(self, verdict: Verdict) -> list[str]:
        if not verdict.corrected:
            return [f"action {self._name(verdict.action)}"] if self._named else []
        by = ", ".join(verdict.binding) or verdict.reason
        if not self._named:
            return [f"proposed (orange), executed (green), corrected by {verdict.distance:.3g}", by]
        return [f"proposed {self._name(verdict.proposed)}   executed {self._name(verdict.action)}", by]

    @property
    def _named(self) -> bool:
        return not isinstance(self.space, gym.spaces.Box)

    def _name(self, action: Action) -> str:
        if not isinstance(self.space, gym.spaces.Discrete):
            return " ".join(map(str, np.ravel(action).tolist()))
        index = int(action) - int(getattr(self.space, "start", 0))
        return self.meanings[index] if index < len(self.meanings) else str(int(action))

    def _bars(self, pen: Any, verdict: Verdict, width: int, top: int) -> None:
        """For each component a bar from the middle of its range: executed, beside it proposed if it differs."""
        low, high = (np.ravel(v).astype(float) for v in (self.space.low, self.space.high))  # type: ignore[attr-defined]
        shown = [(verdict.action, EXECUTED)]
        if verdict.corrected:
            shown = [(verdict.proposed, PROPOSED), *shown]
        column = (width - 2 * MARGIN) / len(low)
        thickness = min(column / 3, 16)
        middle = top + BARS / 2
        pen.line((MARGIN, middle, width - MARGIN, middle), fill=TEXT)
        for place, (action, colour) in enumerate(shown):
            share = np.clip(2 * (np.ravel(action) - low) / (high - low) - 1, -1, 1)
            for component, value in enumerate(np.nan_to_num(share)):
                left = MARGIN + component * column + place * thickness
                end = middle - value * (BARS / 2 - 2)
                pen.rectangle((left, min(middle, end), left + thickness - 2, max(middle, end)), fill=colour)


def _status(verdict: Verdict) -> str:
    watched = verdict.corrected and not verdict.enforced
    return f"{verdict.status}, but not enforced" if watched else str(verdict.status)


@contextmanager
def _whole(video: Path) -> Iterator[Path]:
    """A temporary file that replaces the video once it is complete."""
    unfinished = video.with_name(f".{video.stem}.writing{video.suffix}")
    try:
        video.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        unfinished.replace(video)
    except OSError as error:
        raise GxError(f"{video}: cannot be written: {error.strerror or first_line(error)}") from None
    finally:
        with suppress(OSError):  # its folder may be missing
            unfinished.unlink()


def _frame(env: gym.Env) -> Array:
    frame: Any = env.render()
    return np.asarray(frame, np.uint8)


def _video_packages() -> tuple[Any, tuple[Any, Any, Any]]:
    """imageio, and of Pillow: Image, ImageDraw, ImageFont."""
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise missing_extra(str(error.name or "imageio"), "video") from None
    return imageio, (Image, ImageDraw, ImageFont)
