"""A game's objects, read from RAM: for what the agent sees, what the rules forbid, and what people look at."""

import ast
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rlpd_gx import rules
from rlpd_gx.envs.atari import expressions
from rlpd_gx.envs.atari.games import Game, Thing, find_game
from rlpd_gx.errors import GxError
from rlpd_gx.types import Array

WIDTH, HEIGHT = 160, 210  # of the screen
CHANGE = 16  # pixels in a step that count as 1
NEAR = 24  # pixels from the player within which `near` tells places apart, on a finer scale than that of the screen
KEPT = 5  # members of a large group that are seen: the nearest
MARKED = 32  # the largest group of things that stay where they are whose members are seen one by one
LIMIT = 4  # of every number of an observation
JUMP = 32  # a larger change is another object in the same place of RAM
CODE = rules.code_of(__file__)  # part of the fingerprint
NOTHING = [0.0] * 9  # the numbers of a thing that is not there
Point = tuple[float, float] | None  # upper left corner; None where there is nothing


class Drawn(NamedTuple):
    """A box on the screen, in pixels."""

    name: str
    role: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Scene:
    """What RAM shows: the player and, for each thing of `Sight.moving`, where its members are."""

    player: Point
    places: list[Point]
    player_before: Point
    places_before: list[Point]

    def change(self, member: int, wrap: float) -> tuple[float, float]:
        """Pixels since the step before; none for what was not there."""
        return moved(self.places_before[member], self.places[member], wrap)


def moved(before: Point, now: Point, wrap: float = 0) -> tuple[float, float]:
    """Pixels between two places of one object; none if it cannot be the same one."""
    if before is None or now is None:
        return 0.0, 0.0
    dx, dy = now[0] - before[0], now[1] - before[1]
    if wrap:
        dx = (dx + wrap / 2) % wrap - wrap / 2
    return (dx, dy) if -JUMP <= dx <= JUMP and -JUMP <= dy <= JUMP else (0.0, 0.0)


class Sight:
    """Reads the objects of one game from two RAM images, of now and of a step before."""

    def __init__(self, game: Game) -> None:
        if game.player is None:
            raise GxError(f"{game.name} has no table of objects: its table lacks [player]")
        self.game, self.player = game, game.player
        where = game.file or game.name

        def tree(text: str) -> ast.expr:
            return expressions.parse(text, game.names, where)

        def places(thing: Thing) -> list[str]:
            corner = ast.Tuple([tree(thing.x), tree(thing.y)], ast.Load())
            return expressions.for_each(
                ast.IfExp(tree(thing.present), corner, ast.Constant(None)), thing.count
            )

        def still(thing: Thing) -> bool:
            return not (expressions.reads_ram(tree(thing.x)) or expressions.reads_ram(tree(thing.y)))

        self.moving = tuple(t for t in game.things if not still(t))
        self.fixed = tuple(t for t in game.things if still(t))
        first = Thing(
            "player", "friend", self.player.x, self.player.y, self.player.size, 1, self.player.present
        )
        self.first_member = np.cumsum([0, *(t.count for t in self.moving)]).tolist()
        self._places = expressions.function([s for t in (first, *self.moving) for s in places(t)], where)
        shown = [s for t in self.fixed for s in expressions.for_each(tree(t.present), t.count)]
        self._shown = expressions.function(shown, where)
        across = [s for t in self.fixed for s in expressions.for_each(tree(t.x), t.count)]
        down = [s for t in self.fixed for s in expressions.for_each(tree(t.y), t.count)]
        corners = [expressions.function(axis, where)(b"", b"") for axis in (across, down)]
        self.spots = np.array(corners, float).T
        self._last: tuple[Array, Array, list[Point], Scene] | None = None

    def scene(self, ram: Array, was: Array) -> Scene:
        """Where everything is, and was; remembered until another image is asked about, since many rules ask."""
        if self._last is None or self._last[0] is not ram or self._last[1] is not was:
            # The step before was read a step ago.
            known = self._last is not None and self._last[0] is was
            before = self._last[2] if known and self._last is not None else self._read(was, was)
            now = before if ram is was else self._read(ram, was)
            self._last = ram, was, now, Scene(now[0], now[1:], before[0], before[1:])
        return self._last[3]

    def shown(self, ram: Array) -> list[bool]:
        """Which members of the fixed things are there."""
        image = ram.tobytes()
        return list(map(bool, self._shown(image, image)))

    def _read(self, ram: Array, was: Array) -> list[Point]:
        try:
            return self._places(ram.tobytes(), was.tobytes())
        except (IndexError, ZeroDivisionError) as error:
            raise GxError(f"{self.game.file}: an expression fails on RAM {ram.tolist()}: {error}") from None

    def boxes(self, ram: Array, was: Array) -> list[Drawn]:
        """Everything that is there, the player first; what has no size is not on the screen."""
        scene = self.scene(ram, was)
        found = [] if scene.player is None else [Drawn("player", "player", *scene.player, *self.player.size)]
        for first, thing in zip(self.first_member, self.moving, strict=False):
            places = scene.places[first : first + thing.count]
            found += [Drawn(thing.name, thing.role, *p, *thing.size) for p in places if p is not None]
        at = 0
        shown = self.shown(ram)
        for thing in self.fixed:
            for i in range(at, at + thing.count):
                if shown[i]:
                    x, y = self.spots[i].tolist()
                    found.append(Drawn(thing.name, thing.role, x, y, *thing.size))
            at += thing.count
        return [box for box in found if box.width and box.height]


class Objects:
    """A game as a vector of float32 [n] with `names`; a function of two RAM images.

    For the player: present, x, y, change in x and in y. For a thing that moves also where it is from the player, on the
    scale of the screen and on a finer one (`near`); of a group of more than 5, its share that is there and the 5
    nearest. For a thing that stays where it is: how much of it is left, the nearest, and which members are there, up to
    32. Then resources (1 full, 0 empty), numbers with their change, categories one-hot. What is not there is all zeros.
    Positions are shares of the screen, changes are in 16 pixels, `near` is in 24 pixels and ends at 1.
    """

    def __init__(self, game: Game) -> None:
        self.sight, self.game = Sight(game), game
        where = game.file or game.name

        def values(rows: list[tuple[str, int]]) -> list[str]:
            return [expressions.for_one(expressions.parse(e, game.names, where), i) for e, i in rows]

        self._resources = expressions.function(values([(r.value, 0) for r in game.resources]), where)
        numbers = [(n, i) for n in game.numbers for i in range(n.count)]
        self._numbers = expressions.function(values([(n.value, i) for n, i in numbers]), where)
        self._scales = [n.scale for n, _ in numbers]
        self._codes = expressions.function(values([(c.value, 0) for c in game.categories]), where)
        self.names = tuple(self._names())

    @property
    def space(self) -> gym.spaces.Box:
        """Of observations."""
        return gym.spaces.Box(-LIMIT, LIMIT, (len(self.names),), np.float32)

    @property
    def fingerprint(self) -> str:
        """Changes whenever the numbers may."""
        return rules.fingerprint(CODE, expressions.CODE, repr(self.game))

    def _names(self) -> list[str]:
        names = [f"player {f}" for f in ("present", "x", "y", "change x", "change y")]
        away = ("from player x", "from player y", "near x", "near y")
        parts = ("present", "x", "y", "change x", "change y", *away)
        for t in self.sight.moving:
            many = t.count > KEPT
            names += [f"{t.name} share present"] * many
            members = [f"{t.name} nearest {i}" for i in range(KEPT)] if many else _members(t.name, t.count)
            names += [f"{member} {part}" for member in members for part in parts]
        for t in self.sight.fixed:
            names += [f"{t.name} share left"] + [f"{t.name} nearest {part}" for part in away]
            names += [f"{m} present" for m in _members(t.name, t.count) if t.count <= MARKED]
        names += [resource.name for resource in self.game.resources]
        for n in self.game.numbers:
            names += [
                f"{member} {part}" for member in _members(n.name, n.count) for part in ("value", "change")
            ]
        for c in self.game.categories:
            names += [f"{c.name} = {value}" for value in c.values]
        return names

    def __call__(self, ram: Array, was: Array) -> Array:
        """The vector of one step; at the start of an episode `was` is `ram`."""
        scene = self.sight.scene(ram, was)
        player = scene.player
        out = (
            [0.0] * 5 if player is None else [1.0, *_at(player), *_change(moved(scene.player_before, player))]
        )
        for first, thing in zip(self.sight.first_member, self.sight.moving, strict=False):
            members = [*range(first, first + thing.count)]
            if thing.count > KEPT:
                members, share = self._nearest(scene, members)
                out.append(share)
            for member in members:
                place = scene.places[member]
                if place is None:
                    out += NOTHING
                    continue
                out += (1.0, *_at(place), *_change(scene.change(member, thing.wrap)), *_away(place, player))
            out += NOTHING * (min(thing.count, KEPT) - len(members))
        if self.sight.fixed:
            out += self._fixed(ram, player)
        image, image_before = ram.tobytes(), was.tobytes()
        for value, resource in zip(self._resources(image, image_before), self.game.resources, strict=True):
            out.append((value - resource.empty) / (resource.full - resource.empty))
        if self._scales:
            now, earlier = self._numbers(image, image_before), self._numbers(image_before, image_before)
            for value, last, scale in zip(now, earlier, self._scales, strict=True):
                out += (value / scale, (value - last) / scale)
        for code, category in zip(self._codes(image, image_before), self.game.categories, strict=True):
            out += [float(code == value) for value in category.values]
        return np.clip(np.array(out, np.float32), -LIMIT, LIMIT)

    def _nearest(self, scene: Scene, members: list[int]) -> tuple[list[int], float]:
        """Those of a group that are nearest to the player, the nearest first, and the share that is there."""
        there = [member for member in members if scene.places[member] is not None]
        share = len(there) / len(members)
        if scene.player is not None:
            px, py = scene.player
            there.sort(key=lambda m: abs(scene.places[m][0] - px) + abs(scene.places[m][1] - py))  # type: ignore[index]
        return there[:KEPT], share

    def _fixed(self, ram: Array, player: Point) -> list[float]:
        shown = np.array(self.sight.shown(ram), bool)
        out: list[float] = []
        first = 0
        for thing in self.sight.fixed:
            here = shown[first : first + thing.count]
            spots = self.sight.spots[first : first + thing.count][here]
            first += thing.count
            nearest = None
            if player is not None and len(spots):
                nearest = spots[np.abs(spots - player).sum(axis=1).argmin()].tolist()
            out += (np.count_nonzero(here) / thing.count, *_away(nearest, player))
            if thing.count <= MARKED:
                out += here.tolist()
        return out


def _members(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name} {i}" for i in range(count)]


def _away(place: Point, player: Point) -> tuple[float, float, float, float]:
    """From the player: in shares of the screen, and near it."""
    if place is None or player is None:
        return 0.0, 0.0, 0.0, 0.0
    dx, dy = place[0] - player[0], place[1] - player[1]
    return dx / WIDTH, dy / HEIGHT, min(max(dx / NEAR, -1.0), 1.0), min(max(dy / NEAR, -1.0), 1.0)


def _at(place: tuple[float, float]) -> tuple[float, float]:
    return place[0] / WIDTH, place[1] / HEIGHT


def _change(pixels: tuple[float, float]) -> tuple[float, float]:
    return pixels[0] / CHANGE, pixels[1] / CHANGE


def objects_of(game: str) -> Objects:
    """The objects of a game, by its name or the file of its table."""
    return Objects(find_game(game))


class ObjectsObservation(gym.ObservationWrapper[Array, Any, Any]):
    """Objects in the place of what an environment of ale-py shows: `ObjectsObservation(gym.make("ALE/Pong-v5"))`.

    Each step of the environment must run the frames of one action, as ale-py's own frame skip does.
    """

    def __init__(self, env: gym.Env, game: str | None = None) -> None:
        super().__init__(env)
        world: Any = env.unwrapped
        if not hasattr(world, "ale"):
            raise GxError(f"objects are read from an Atari emulator, which {env} does not have")
        named = game or (env.spec.id if env.spec else "").removeprefix("ALE/").partition("-")[0]
        self.objects = objects_of(named)
        self.observation_space = self.objects.space
        self._ram: Array | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What each number is."""
        return self.objects.names

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        self._ram = None
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> Array:
        world: Any = self.env.unwrapped
        ram = world.ale.getRAM()
        was, self._ram = ram if self._ram is None else self._ram, ram
        return self.objects(ram, was)
