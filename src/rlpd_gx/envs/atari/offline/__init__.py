"""Offline sets that come with the package, as action logs by set and game: `--offline planner`, `--offline recorded`.

planner       `rlpd-gx collect --policy planner`, 5,000 or 10,000 steps; a log lists command, seed, steps and score of
              its parts
planner-30k   the same with more parts, 30,000 steps
recorded      games of pretrained A3C policies (greydanus/baby-a3c), sampled actions: Pong and Breakout
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def sets_of(game: str) -> dict[str, Path]:
    """The logs of a game, by the name of their set; case and underscores in the game's name do not matter."""
    wanted = f"{game.replace('_', '').lower()}.json.gz"
    return {
        path.parent.name: path for path in sorted(FOLDER.glob("*/*.json.gz")) if path.name.lower() == wanted
    }
