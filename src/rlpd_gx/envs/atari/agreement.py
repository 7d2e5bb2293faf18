"""Do the tables agree with the screen? Boxes predicted from RAM, beside the pixels of guarded play."""

from collections import defaultdict
from typing import Any

import numpy as np

from rlpd_gx.envs.atari.env import AtariEnv, make
from rlpd_gx.envs.atari.objects import HEIGHT, WIDTH, Drawn, Sight
from rlpd_gx.envs.atari.ram_rules import RamRules
from rlpd_gx.types import Array

ELSEWHERE = (61, 47)  # pixels that control boxes are moved by, around the edges
EVERY = 10  # steps between two looks at the screen
LEAST_SHARE = 0.05  # of a box's pixels that must differ from the background
LEAST_VISIBLE = 0.5  # of a box must be on the screen


def boxes_agree(game: str, steps: int = 1_500, seed: int = 0) -> dict[str, dict[str, Any]]:
    """For each kind of object: boxes looked at, the share that shows something, and the same of boxes elsewhere.

    Something is shown where pixels differ from the background in one of the step's four frames: sprites flicker. The
    background of a pixel is its most frequent colour in the play; for things that stayed where they were, the most
    frequent colour of the screen.
    """
    env = make(game)
    sight = Sight(env.game)
    frames, found = [], []
    for screens, boxes in _play(env, sight, steps, seed):
        frames.append(screens)
        found.append(boxes)
    film = np.array(frames)  # [N, 4, height, width]
    usual = _most_frequent(film[:, -1])
    common = int(np.bincount(film[:, -1].ravel(), minlength=256).argmax())
    spots: dict[str, set[tuple[float, float]]] = defaultdict(set)
    for box in (box for boxes in found for box in boxes):
        spots[box.name].add((box.x, box.y))
    counts = {"player": 1} | {thing.name: thing.count for thing in env.game.things}
    still = {name for name, places in spots.items() if len(places) <= counts[name]}  # part of the background
    seen: dict[str, list[bool]] = defaultdict(list)
    beside: dict[str, list[bool]] = defaultdict(list)
    for screens, boxes in zip(film, found, strict=True):
        moved = (screens != usual).any(axis=0)
        drawn = (screens != common).any(axis=0)
        for box in boxes:
            picture = drawn if box.name in still else moved
            inside = _shows(picture, box)
            if inside is None:
                continue
            seen[box.name].append(inside)
            far = _shows(
                picture, box._replace(x=(box.x + ELSEWHERE[0]) % WIDTH, y=(box.y + ELSEWHERE[1]) % HEIGHT)
            )
            if far is not None:
                beside[box.name].append(far)
    names = ["player", *(thing.name for thing in env.game.things if all(thing.size))]
    return {
        name: {
            "boxes": len(seen[name]),
            "share": round(float(np.mean(seen[name])), 3) if seen[name] else None,
            "elsewhere": round(float(np.mean(beside[name])), 3) if beside[name] else None,
        }
        for name in names
    }


def _play(env: AtariEnv, sight: Sight, steps: int, seed: int) -> Any:
    """Random play under the table's rules; now and then the four screens of a step, and the boxes after it."""
    rules = RamRules(env).parts if env.game.rules else ()
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    for step in range(steps):
        margins = np.zeros(len(env.actions))
        for rule in rules:
            margins = np.minimum(margins, rule.margins(env.ram(), env.previous_ram()))  # type: ignore[attr-defined]
        action = int(rng.choice(np.flatnonzero(margins >= margins.max())))
        screens = []
        if step % EVERY == 0:
            clone = env.clone()
            for _ in range(env.frame_skip):
                env.ale.act(env.actions[action])
                screens.append(env.ale.getScreen())
            env.restore_clone(clone)
        *_, terminated, truncated, info = env.step(action)
        if screens and not terminated and not env.game.is_dying(env.ram()) and not info["unsafe_event"]:
            yield screens, sight.boxes(env.ram(), env.previous_ram())
        if terminated or truncated:
            env.reset(seed=seed + step + 1)


def _most_frequent(film: Array) -> Array:
    """The most frequent value of each pixel, [N, height, width] -> [height, width]."""
    flat = film.reshape(len(film), -1)
    best, count = flat[0].copy(), np.zeros(flat.shape[1], int)
    for value in np.unique(flat):
        times = (flat == value).sum(axis=0)
        best = np.where(times > count, value, best)
        count = np.maximum(count, times)
    return best.reshape(film.shape[1:])


def _shows(picture: Array, box: Drawn) -> bool | None:
    """Whether enough of a box is marked; None where too little of it is on the screen."""
    left, top = max(round(box.x), 0), max(round(box.y), 0)
    part = picture[top : max(round(box.y + box.height), 0), left : max(round(box.x + box.width), 0)]
    if part.size < LEAST_VISIBLE * box.width * box.height:
        return None
    return bool(part.sum() >= max(1, LEAST_SHARE * part.size))
