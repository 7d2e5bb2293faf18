"""Offline sets that come with the package: action logs by set and game, `--offline planner` or `--offline recorded`.

planner    `rlpd-gx collect --policy planner`; each log lists the command, seed, steps and score of its parts
recorded   games of pretrained A3C policies (greydanus/baby-a3c), sampled actions: Pong and Breakout
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def bundled(name: str, env_id: str) -> Path | None:
    """The log of a set for the game of `Atari/GAME-...` or `ALE/GAME-v5`; None if there is none."""
    prefix, _, rest = env_id.partition("/")
    if prefix not in ("Atari", "ALE") or not (FOLDER / name).is_dir() or not name.isidentifier():
        return None
    path = FOLDER / name / f"{rest.partition('-')[0]}.json.gz"
    return path if path.exists() else None
