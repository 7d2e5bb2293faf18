"""A frame with what the table sees in it: boxes, where deadly things are going, and what the rules forbid."""

from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.envs.atari.env import AtariEnv
from rlpd_gx.envs.atari.objects import Sight
from rlpd_gx.envs.atari.ram_rules import RamRules
from rlpd_gx.errors import missing_extra
from rlpd_gx.types import Array

SCALE = 4
TEXT_HEIGHT = 16
COLOURS = {  # RGB
    "player": (90, 220, 90), "hazard": (255, 70, 70), "enemy": (255, 140, 0), "projectile": (255, 220, 0),
    "goal": (90, 160, 255), "pickup": (0, 220, 220), "friend": (190, 190, 255), "platform": (150, 150, 150),
}  # fmt: skip


def forbidden(env: AtariEnv) -> dict[str, list[str]]:
    """The actions that each RAM rule forbids now, by their names; rules that forbid nothing are left out."""
    found = {}
    for rule in RamRules(env).parts if env.game.rules else ():
        margins = rule.margins(env.ram(), env.previous_ram())  # type: ignore[attr-defined]
        names = [name for name, margin in zip(env.action_meanings, margins, strict=True) if margin < 0]
        if names:
            found[rule.name] = names
    return found


def picture(env: AtariEnv) -> Array:
    """The screen after the last step, four times as large, with boxes and a legend: uint8 [height, width, 3]."""
    cv2 = _cv2()
    sight = Sight(env.game)
    ram, was = env.ram(), env.previous_ram()
    image = np.repeat(np.repeat(env.render(), SCALE, axis=0), SCALE, axis=1)
    for box in sight.boxes(ram, was):
        corner = round(box.x * SCALE), round(box.y * SCALE)
        other = round((box.x + box.width) * SCALE), round((box.y + box.height) * SCALE)
        cv2.rectangle(image, corner, other, COLOURS[box.role], 1 if box.role == "platform" else 2)
    _arrows(cv2, image, env, sight)
    rows = [f"{rule}: not {', '.join(names)}" for rule, names in forbidden(env).items()] or [
        "nothing is forbidden"
    ]
    rows = [row[i : i + 86] for row in rows for i in range(0, len(row), 86)]
    legend = np.zeros((TEXT_HEIGHT * (len(rows) + 1), image.shape[1], 3), np.uint8)
    for n, row in enumerate(rows):
        place = 4, TEXT_HEIGHT * (n + 1)
        cv2.putText(legend, row, place, cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1, cv2.LINE_AA)
    return np.concatenate((image, legend))


def _arrows(cv2: Any, image: Array, env: AtariEnv, sight: Sight) -> None:
    """From each deadly thing to where its rule expects it at the end of the horizon."""
    horizons = {
        name: rule.horizon for rule in env.game.rules if rule.kind == "collision" for name in rule.things
    }
    scene = sight.scene(env.ram(), env.previous_ram())
    for first, thing in zip(sight.first_member, sight.moving, strict=False):
        for member in range(first, first + thing.count) if thing.name in horizons else ():
            place = scene.places[member]
            change = np.array(scene.change(member, thing.wrap))
            if place is not None and change.any():
                middle = np.array(place) + np.array(thing.size) / 2
                start, end = middle * SCALE, (middle + change * horizons[thing.name]) * SCALE
                cv2.arrowedLine(
                    image, start.astype(int).tolist(), end.astype(int).tolist(), (255, 255, 255), 1
                )


def save(image: Array, path: Path) -> None:
    """As PNG, whatever the name of the file."""
    _, data = _cv2().imencode(".png", image[..., ::-1])
    path.write_bytes(data.tobytes())


def _cv2() -> Any:
    try:
        import cv2
    except ImportError:
        raise missing_extra("opencv-python-headless", "atari") from None
    return cv2
