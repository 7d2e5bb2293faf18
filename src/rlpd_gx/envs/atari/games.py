"""What we know of each game: its unsafe event, and how dying shows in RAM before the event is counted.

Numbers were measured with `rlpd-gx atari find-flags all`; results/atari-flags.json holds them all.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from rlpd_gx.errors import GxError
from rlpd_gx.types import Array

LIFE_LOST, NEGATIVE_REWARD, KNOCKED_BACK = "life lost", "negative reward", "knocked back"
# Freeway: 0 while the chicken walks; a car sets it to 92, from where it counts down while the chicken is pushed back
# and held. Reaching the other side sets it to 142 or 143, and is no mishap. Seen frame by frame in three games of UP,
# beside the chicken's height, [14].
FREEWAY_STUN, FREEWAY_CROSSED = 106, 128


@dataclass(frozen=True)
class Flag:
    """A condition on RAM: the byte at `address` is one of `values`, which are in order."""

    address: int
    values: tuple[int, ...]

    def __call__(self, ram: Array) -> bool:
        """Whether it holds in one RAM image [128]."""
        return int(ram[self.address]) in self.values

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The values as unbroken runs, (first, last)."""
        runs: list[tuple[int, int]] = []
        for value in self.values:
            if runs and runs[-1][1] == value - 1:
                runs[-1] = (runs[-1][0], value)
            else:
                runs.append((value, value))
        return runs

    def __str__(self) -> str:
        runs = [f"{first}" if first == last else f"{first}-{last}" for first, last in self.spans]
        return f"[{self.address}] = {', '.join(runs)}"


def span(first: int, last: int) -> tuple[int, ...]:
    """All values from the first to the last."""
    return tuple(range(first, last + 1))


@dataclass(frozen=True)
class Resource:
    """A byte of RAM that runs out: at `empty` a life is lost."""

    name: str
    address: int
    full: int
    empty: int = 0


class Moment(NamedTuple):
    """What events are told from: RAM [128], the lives left, and whether the game is over."""

    ram: Array
    lives: int
    game_over: bool


@dataclass(frozen=True)
class Evidence:
    """Measurements behind a row of the table, copied from results/atari-flags.json."""

    precision: float = 0.0  # share of flagged steps that the event followed
    recall: float = 0.0  # share of events that were flagged
    events: int = 0  # seen in all, half of them fresh for the check
    lag_steps: float = 0.0  # median, from the event being certain to its being counted


@dataclass(frozen=True)
class Game:
    """One game, and what counts as unsafe in it."""

    name: str
    actions: int  # in the minimal set
    event: str = LIFE_LOST
    end_counts: bool = True  # the last life shows as the end of the game; if not, it was counted before
    dying: tuple[Flag, ...] = ()  # any of them; empty where none was found
    resources: tuple[Resource, ...] = ()
    depth: int = 0  # steps to look ahead, as the flag asks for
    horizon: int = 0  # look at least so far, where traps close earlier than that
    evidence: Evidence = Evidence()

    @property
    def rom(self) -> str:
        """The file name the emulator knows it by: KungFuMaster is kung_fu_master."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    def unsafe(self, before: Moment, after: Moment, worst_reward: float) -> bool:
        """Whether the unsafe event happened in a step, `worst_reward` being the lowest of its frames."""
        if self.event == LIFE_LOST:  # falling only: some counters also rise
            return self.end_counts if after.game_over else after.lives < before.lives
        if self.event == NEGATIVE_REWARD:
            return worst_reward < 0
        return bool(before.ram[FREEWAY_STUN] < after.ram[FREEWAY_STUN] < FREEWAY_CROSSED)

    def is_dying(self, ram: Array) -> bool:
        """Whether RAM [128] shows that the event is already certain."""
        return any(flag(ram) for flag in self.dying)


_TABLE = (
    Game("Alien", 18, dying=(Flag(102, (3,)),), depth=5, evidence=Evidence(1.0, 1.0, 191, 15)),
    Game("Amidar", 10, end_counts=False, depth=33, evidence=Evidence(events=196, lag_steps=2)),
    Game(
        "Assault",
        7,
        dying=(Flag(10, (*span(1, 5), 8, 10, 12, 14)),),
        depth=17,
        evidence=Evidence(1.0, 1.0, 176, 15),
    ),
    Game("Asterix", 9, dying=(Flag(69, (1,)),), depth=7, evidence=Evidence(1.0, 1.0, 200, 32)),
    Game("BankHeist", 18, dying=(Flag(23, (253,)),), depth=6, evidence=Evidence(1.0, 1.0, 200, 51.5)),
    Game("BattleZone", 18, depth=18, evidence=Evidence(events=158, lag_steps=4)),
    Game("Boxing", 18, NEGATIVE_REWARD, depth=9, evidence=Evidence(events=200, lag_steps=2)),
    Game("Breakout", 4, dying=(Flag(101, span(184, 208)),), depth=13, evidence=Evidence(1.0, 1.0, 200, 14.5)),
    Game("ChopperCommand", 18, dying=(Flag(73, (173,)),), depth=6, evidence=Evidence(1.0, 1.0, 196, 16)),
    Game(
        "CrazyClimber",
        9,
        dying=(Flag(93, (1, 2)),),
        depth=13,
        evidence=Evidence(1.0, 1.0, 60, 44.5),
    ),
    Game("DemonAttack", 6, dying=(Flag(63, (3,)),), depth=5, evidence=Evidence(1.0, 1.0, 185, 16)),
    Game("Freeway", 3, KNOCKED_BACK, depth=7, evidence=Evidence(events=200, lag_steps=0.5)),
    Game(
        "Frostbite",
        18,
        dying=(
            Flag(107, span(8, 18)),
            Flag(2, (52, 116, 166)),
        ),
        depth=20,
        evidence=Evidence(0.9947, 0.81, 200, 56),
    ),
    Game("Gopher", 8, depth=64, evidence=Evidence(events=120, lag_steps=36)),
    Game("Hero", 18, dying=(Flag(45, span(150, 255)),), depth=37, evidence=Evidence(1.0, 1.0, 190, 29)),
    Game("Jamesbond", 18, dying=(Flag(100, (250,)),), depth=6, evidence=Evidence(1.0, 1.0, 200, 15)),
    Game("Kangaroo", 18, dying=(Flag(54, (1,)),), depth=9, evidence=Evidence(1.0, 1.0, 200, 24)),
    Game("Krull", 18, dying=(Flag(17, span(105, 120)),), depth=64, evidence=Evidence(1.0, 0.5652, 49, 128)),
    Game("KungFuMaster", 14, dying=(Flag(34, (1,)),), depth=20, evidence=Evidence(1.0, 1.0, 198, 12)),
    Game(
        "MsPacman",
        9,
        dying=(Flag(39, span(73, 83)),),
        depth=8,
        horizon=36,
        evidence=Evidence(1.0, 1.0, 200, 20),
    ),
    Game(
        "Pong",
        6,
        NEGATIVE_REWARD,
        dying=(Flag(49, span(192, 204)),),
        depth=26,
        evidence=Evidence(1.0, 1.0, 200, 6.5),
    ),
    Game("PrivateEye", 18, NEGATIVE_REWARD, depth=10, evidence=Evidence(events=200, lag_steps=1)),
    Game(
        "Qbert",
        6,
        dying=(
            Flag(
                68,
                (*span(225, 227), *span(229, 233), *span(235, 241), *span(243, 247)),
            ),
        ),
        depth=19,
        evidence=Evidence(1.0, 0.56, 200, 12),
    ),
    Game("RoadRunner", 18, dying=(Flag(101, (255,)),), depth=6, evidence=Evidence(0.9835, 0.67, 200, 22.5)),
    Game(
        "Seaquest",
        18,
        resources=(Resource("oxygen", 102, full=64),),
        dying=(Flag(105, span(1, 23)),),
        depth=5,
        evidence=Evidence(1.0, 1.0, 200, 23.5),
    ),
    Game(
        "UpNDown",
        6,
        dying=(
            Flag(36, span(17, 22)),
            Flag(76, (100,)),
        ),
        depth=13,
        evidence=Evidence(0.9825, 0.82, 200, 52),
    ),
)
GAMES: dict[str, Game] = {game.name: game for game in _TABLE}


def find_game(name: str) -> Game:
    """The game of that name; case and underscores do not matter."""
    plain = name.replace("_", "").lower()
    for game in _TABLE:
        if game.name.lower() == plain:
            return game
    raise GxError(f"{name!r} is not one of the 26 Atari games; there are {', '.join(GAMES)}")
