"""Figures as reported by others: the paper's tables as printed, and published planners. Never ours."""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

GAMES = (
    "Alien", "Amidar", "Assault", "Asterix", "BankHeist", "BattleZone", "Boxing", "Breakout", "ChopperCommand",
    "CrazyClimber", "DemonAttack", "Freeway", "Frostbite", "Gopher", "Hero", "Jamesbond", "Kangaroo", "Krull",
    "KungFuMaster", "MsPacman", "Pong", "PrivateEye", "Qbert", "RoadRunner", "Seaquest", "UpNDown",
)  # fmt: skip


@lru_cache
def tables() -> dict[str, Any]:
    """Everything in reported.json."""
    return json.loads(files("rlpd_gx.experiments").joinpath("reported.json").read_text(encoding="utf-8"))


def score(table: str, variant: str, game: str) -> float | None:
    """The score that a table of the paper has for a variant in a game."""
    return tables()[table]["games"].get(variant, {}).get(game)


def atari100k(agent: str, game: str) -> float:
    """The main table: the score of an agent in a game."""
    return tables()["atari100k"]["games"][game][agent]


def normalised(game: str, value: float) -> float:
    """The human-normalised score, with the random and human scores that the paper prints."""
    random, human = atari100k("random", game), atari100k("human", game)
    return (value - random) / (human - random)
