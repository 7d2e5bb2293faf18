"""What we know of each game: its unsafe event, and how dying shows in RAM before the event is counted.

Numbers were measured with `rlpd-gx atari find-flags all`; results/atari-flags.json holds them all.
"""

import re
from dataclasses import dataclass

from rlpd_gx.errors import GxError
from rlpd_gx.types import Array


@dataclass(frozen=True)
class Flag:
    """A condition on RAM: the byte at `address` is one of `values`."""

    address: int
    values: tuple[int, ...]

    def __call__(self, ram: Array) -> bool:
        """Whether it holds in one RAM image [128]."""
        return int(ram[self.address]) in self.values

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"[{self.address}]=={self.values[0]}"
        return f"[{self.address}] in {{{','.join(map(str, self.values))}}}"


@dataclass(frozen=True)
class Game:
    """One game, and what counts as unsafe in it."""

    name: str
    event: str = "life lost"  # or "negative reward", "knocked back"
    dying: Flag | None = None

    @property
    def rom(self) -> str:
        """The file name the emulator knows it by: KungFuMaster is kung_fu_master."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    def unsafe(self, lives_before: int, lives: int, worst_reward: float, before: Array, ram: Array) -> bool:
        """Whether the unsafe event happened in a step, from lives, lowest reward of a frame and RAM [128]."""
        if self.event == "life lost":  # falling only: some counters also rise
            return lives < lives_before
        if self.event == "negative reward":
            return worst_reward < 0
        return False

    def is_dying(self, ram: Array) -> bool:
        """Whether RAM [128] shows that the event is already certain."""
        return self.dying is not None and self.dying(ram)


_TABLE = (
    Game("Alien"),
    Game("Amidar"),
    Game("Assault"),
    Game("Asterix"),
    Game("BankHeist"),
    Game("BattleZone"),
    Game("Boxing", "negative reward"),
    Game("Breakout"),
    Game("ChopperCommand"),
    Game("CrazyClimber"),
    Game("DemonAttack"),
    Game("Freeway", "knocked back"),
    Game("Frostbite"),
    Game("Gopher"),
    Game("Hero"),
    Game("Jamesbond"),
    Game("Kangaroo"),
    Game("Krull"),
    Game("KungFuMaster"),
    Game("MsPacman"),
    Game("Pong", "negative reward"),
    Game("PrivateEye", "negative reward"),
    Game("Qbert"),
    Game("RoadRunner"),
    Game("Seaquest"),
    Game("UpNDown"),
)
GAMES: dict[str, Game] = {game.name: game for game in _TABLE}


def find_game(name: str) -> Game:
    """The game of that name; case and underscores do not matter."""
    plain = name.replace("_", "").lower()
    for game in _TABLE:
        if game.name.lower() == plain:
            return game
    raise GxError(f"{name!r} is not one of the 26 Atari games; there are {', '.join(GAMES)}")
