"""What we know of each game: one table a game, in `tables/`, and a folder or file of the user's own.

A table says where things stand in RAM, what each action does to the player, what is unsafe, and how dying shows
before it is counted. `docs/atari.md` explains every field. Dying flags and their evidence were measured with
`rlpd-gx atari find-flags all`; results/atari-flags.json holds them.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rlpd_gx.errors import GxError
from rlpd_gx.types import Array

TABLES = Path(__file__).parent / "tables"
LIFE_LOST, NEGATIVE_REWARD, KNOCKED_BACK = "life lost", "negative reward", "knocked back"
EVENTS = (LIFE_LOST, NEGATIVE_REWARD, KNOCKED_BACK)
ROLES = ("hazard", "enemy", "projectile", "goal", "pickup", "friend", "platform")
KEEPS = "keeps"  # a move that goes on as in the last step
Range = tuple[float, float]
Box = tuple[float, float, float, float]


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

    @classmethod
    def parse(cls, text: str) -> "Flag":
        """The reverse of `str`: `[105] = 1-23`."""
        found = re.fullmatch(r"\[(\d+)\] = (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)", text)
        if found is None or int(found[1]) > 127:
            raise GxError(f"{text!r} is no condition on a byte of RAM; write it like [105] = 1-23, 30")
        runs = [[int(v) for v in run.split("-")] for run in found[2].split(", ")]
        return cls(int(found[1]), tuple(v for run in runs for v in span(run[0], run[-1])))


def span(first: int, last: int) -> tuple[int, ...]:
    """All values from the first to the last."""
    return tuple(range(first, last + 1))


class Moment(NamedTuple):
    """What events are read from: RAM [128], the lives left, and whether the game is over."""

    ram: Array
    lives: int
    game_over: bool


@dataclass(frozen=True)
class Evidence:
    """Measurements behind a dying flag, copied from results/atari-flags.json."""

    precision: float = 0.0  # share of flagged steps that the event followed
    recall: float = 0.0  # share of events that were flagged
    events: int = 0  # seen in all, half of them fresh for the check
    lag_steps: float = 0.0  # median, from the event being certain to its being counted


@dataclass(frozen=True)
class Player:
    """Who the actions move. `x`, `y` are of the upper left corner, in pixels of the screen (160 x 210)."""

    x: str
    y: str
    size: Range
    present: str = "True"
    area: Box = (-1e4, -1e4, 1e4, 1e4)  # x and y stay in (left, top, right, bottom)
    moves: Mapping[str, Range | str] = field(
        default_factory=dict
    )  # pixels in a step, or "keeps"; else (0, 0)
    maze: bool = False  # walls are not in the table: a turn may fail, and then the player keeps going


@dataclass(frozen=True)
class Thing:
    """Something on the screen, `count` of it; expressions may use `i`, 0 to count - 1."""

    name: str
    role: str
    x: str
    y: str
    size: Range
    count: int = 1
    present: str = "True"
    wrap: float = 0  # x counts modulo this, if not 0
    kills: tuple[Box, ...] = ()  # its corner minus the player's is in one of: (left, top, right, bottom)
    deadly: str = "True"  # when `kills` counts
    after: str = "0"  # steps until it does
    speed: tuple[str, str] | None = None  # pixels in a step; from the last two steps, if not given


@dataclass(frozen=True)
class Resource:
    """Something that runs out or fills up, from `full` to `empty`."""

    name: str
    value: str
    full: float
    empty: float = 0


@dataclass(frozen=True)
class Category:
    """A code; the agent sees which of `values` it is."""

    name: str
    value: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Number:
    """A further quantity for the agent; it sees value / scale and its change."""

    name: str
    value: str
    scale: float = 255
    count: int = 1


@dataclass(frozen=True)
class RuleRow:
    """One RAM rule. `kind` decides which fields it has; see `ram_rules.py`."""

    name: str
    kind: str
    things: tuple[str, ...] = ()
    horizon: int = 4
    margin: float = 0  # pixels that boxes are widened by
    every: float = 0.5  # steps between the moments looked at
    when: str = "True"
    forbid: tuple[str, ...] = ()
    left: str = "0"
    needs: str = "0"
    way: str = ""
    axis: str = "x"
    at: float = 0
    hit: Range = (0, 0)
    speed: float = 0
    turns: float = 0  # where a ball that goes away turns back at the earliest, on `axis`
    fastest: float = 0  # pixels that the ball goes in a step at most; 0: not known
    bounce: Range = (0, 0)
    start: str = ""  # where the player will come to rest on the other axis; where it is, if not given


@dataclass(frozen=True)
class Game:
    """One game: what counts as unsafe in it, and its objects."""

    name: str
    actions: int  # in the minimal set
    event: str = LIFE_LOST
    end_counts: bool = True  # the last life shows as the end of the game; if not, it was counted before
    knocked: tuple[int, int] = (0, 0)  # knocked back: this byte rises, but stays below the second
    dying: tuple[Flag, ...] = ()  # any of them; empty where none was found
    depth: int = 0  # steps to look ahead, as the flag asks for
    horizon: int = 0  # look at least so far, where traps close earlier than that
    reach: float = 0  # horizons of the RAM rules that are enough for a quick look-ahead; 0: not found to be
    evidence: Evidence = Evidence()
    player: Player | None = None
    things: tuple[Thing, ...] = ()
    resources: tuple[Resource, ...] = ()
    categories: tuple[Category, ...] = ()
    numbers: tuple[Number, ...] = ()
    rules: tuple[RuleRow, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # shorthands of the table's expressions
    sources: tuple[str, ...] = ()
    trouble: str = ""  # what the table does not cover
    file: str = ""  # where the table is

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
        byte, below = self.knocked
        return bool(before.ram[byte] < after.ram[byte] < below)

    def is_dying(self, ram: Array) -> bool:
        """Whether RAM [128] shows that the event is already certain."""
        return any(flag(ram) for flag in self.dying)


Record = TypeVar("Record")


def read_table(path: Path) -> Game:
    """A game from its table."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GxError(f"{path}: cannot be read ({error.strerror}); give the file of a game's table") from None
    except ValueError as error:
        raise GxError(
            f"{path}: is no TOML file ({error}); see docs/atari.md for what a table looks like"
        ) from None
    event = content.pop("event", {})
    if not isinstance(event, dict):
        raise GxError(f"{path}: 'event' must be a section, [event]")
    evidence = _record(Evidence, event.pop("evidence", {}), path, "event.evidence")
    dying = tuple(Flag.parse(text) for text in event.pop("dying", ()))
    kind = event.pop("kind", LIFE_LOST)
    if kind not in EVENTS:
        raise GxError(f"{path}: event.kind is {kind!r}, but it must be one of: {', '.join(EVENTS)}")
    lists = {
        "things": Thing,
        "resources": Resource,
        "categories": Category,
        "numbers": Number,
        "rules": RuleRow,
    }
    rows: dict[str, tuple[Any, ...]] = {
        key: tuple(_record(cls, row, path, f"{key}[{n}]") for n, row in enumerate(content.pop(key, ())))
        for key, cls in lists.items()
    }
    player = content.pop("player", None)
    made = {
        **content,
        **{key: tuple(value) if isinstance(value, list) else value for key, value in event.items()},
        **rows,
        "event": kind,
        "dying": dying,
        "evidence": evidence,
        "player": None if player is None else _record(Player, player, path, "player"),
        "file": path.name,
    }
    game = _record(Game, made, path, "the table")
    for thing in game.things:
        if thing.role not in ROLES:
            raise GxError(
                f"{path}: {thing.name!r} has the role {thing.role!r}; choose one of: {', '.join(ROLES)}"
            )
    return game


def _record(cls: type[Record], row: Any, path: Path, where: str) -> Record:
    """A record from a table's section, with a sentence for fields that are unknown or missing."""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(row, dict):
        raise GxError(f"{path}: {where} must be a section with {', '.join(known)}")
    for name in row:
        if name not in known:
            raise GxError(f"{path}: {where} has no field {name!r}; it may have {', '.join(known)}")
    for name, f in known.items():
        if name not in row and f.default is MISSING and f.default_factory is MISSING:
            raise GxError(f"{path}: {where} lacks {name!r}; add it")
    values = {name: _plain(value, f"{known[name].type}") for name, value in row.items()}
    if "speed" in values and isinstance(values["speed"], tuple):
        values["speed"] = tuple(str(v) for v in values["speed"])
    if "kills" in values and not isinstance(values["kills"][0], tuple):  # one box need not be in a list
        values["kills"] = (values["kills"],)
    return cls(**values)


def _plain(value: Any, kind: str) -> Any:
    """Lists as tuples, numbers where an expression is expected as text."""
    if isinstance(value, list):
        return tuple(_plain(part, "") for part in value)
    if isinstance(value, dict):
        return {key: _plain(part, "") for key, part in value.items()}
    return str(value) if "str" in kind and isinstance(value, (int, float)) else value


class _Games(Mapping[str, Game]):
    """The 26 games by name; a table is read when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
        self._read: dict[str, Game] = {}

    def __getitem__(self, name: str) -> Game:
        if name not in self._read:
            self._read[name] = read_table(self._files[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


GAMES: Mapping[str, Game] = _Games(TABLES)


def find_game(name: str) -> Game:
    """The game of that name (case and underscores do not matter), or of a table of yours: `games/Zaxxon.toml`."""
    if name.endswith(".toml"):
        return read_table(Path(name))
    plain = name.replace("_", "").lower()
    for known in GAMES:
        if known.lower() == plain:
            return GAMES[known]
    raise GxError(
        f"{name!r} is not one of the 26 Atari games and no table (a .toml file); there are {', '.join(GAMES)}"
    )
