"""RAM rules: which actions a game's table forbids, from 128 bytes and no simulation.

Four kinds, each a row of the table with a name:

collision     the player's box would meet a thing's: moved by each action, then by the best way of going on, among
              things that move on as in the last step. The margin is steps to the collision, less `horizon`.
must reach    the thing (a ball) comes to the line `axis` = `at` within `horizon` steps: the player must be able to be
              there by then, at `speed`. The margin is in pixels.
resource      `left` steps are no longer enough for the way back, which takes `needs` steps: only the `way` is allowed.
              The margin is in steps.
blocked       `forbid` these actions `when` the expression holds. The margin is one step.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rlpd_gx import rules
from rlpd_gx.envs.atari import expressions
from rlpd_gx.envs.atari.env import AtariEnv
from rlpd_gx.envs.atari.games import KEEPS, Box, Game, Player, RuleRow
from rlpd_gx.envs.atari.objects import CODE as SIGHT_CODE
from rlpd_gx.envs.atari.objects import Scene, Sight, moved
from rlpd_gx.errors import GxError
from rlpd_gx.rules.forms import CappedMargins
from rlpd_gx.types import Array

CODE = rules.code_of(__file__)  # part of the fingerprint
TOUCH = 1e-9  # a collision at the horizon is one
AMPLE_STEPS = 12  # of a resource that are left, beside the way back, for it not to matter
SPARE_STEPS = 3  # in hand before a ball comes, for the place it comes to not to matter


class Margins(Protocol):
    """A kind of rule, for one row of a table."""

    def __call__(self, ram: Array, was: Array) -> Array:
        """RAM [128] and that of a step before -> margins [n]."""
        ...

    def clear(self, ram: Array, was: Array, reach: float) -> bool:
        """Whether nothing is forbidden within `reach` horizons, whatever the player does."""
        ...


class RamRules(rules.Combined):
    """The RAM rules of a game, all of which must hold; use them with `state=emulator_state`, like `Lookahead`.

    Args:
        env: an environment of the game; only its settings are read.
        names: which of the table's rules; all of them if not given.
    """

    def __init__(self, env: Any, names: Sequence[str] | None = None) -> None:
        atari: AtariEnv = env.unwrapped
        game = atari.game
        known = [row.name for row in game.rules]
        for unknown in set(names or ()) - set(known):
            raise GxError(f"{game.name} has no RAM rule {unknown!r}; it has {', '.join(known) or 'none'}")
        chosen = [row for row in game.rules if names is None or row.name in names]
        if not chosen:
            raise GxError(f"{game.name} has no RAM rules in its table; add [[rules]], or use Lookahead")
        sight = Sight(game)
        parts = tuple(RamRule(row, sight, atari.action_meanings) for row in chosen)
        super().__init__("all", parts)

    def shifted(self, delta: float) -> rules.Combined:  # type: ignore[override]
        """Every rule with its threshold moved by delta, in pixels or steps, as its kind has it."""
        return rules.Combined("all", tuple(part.shifted(delta) for part in self.parts))


class RamRule(rules.Atom):
    """One row of the table as a rule: margins for all actions at once, batched."""

    def __init__(self, row: RuleRow, sight: Sight, actions: Sequence[str]) -> None:
        super().__init__(_OfStates(row, sight, actions), CappedMargins(), row.name, batched=True)

    def shifted(self, delta: float) -> rules.Atom:  # type: ignore[override]
        """The same rule with another threshold."""
        return rules.Atom(self.fn, self.form, self.name, batched=True, shift=self.shift + delta)

    @property
    def margins(self) -> Margins:
        """RAM [128] and that of a step before -> margins [n]."""
        assert isinstance(self.fn, _OfStates)
        return self.fn.margins


class NothingNear:
    """Whether nothing of a table comes into play soon, whatever the player does; from two RAM images.

    Soon is within `reach` times the horizon of a rule. This is what `QuickLookahead` ends its search with.
    """

    def __init__(self, env: Any, reach: float) -> None:
        self.reach, self._rules = reach, [part for part in RamRules(env).parts if isinstance(part, RamRule)]

    @property
    def fingerprint(self) -> str:
        """Of the rules and how far they look."""
        return rules.fingerprint(self.reach, [rule.fingerprint for rule in self._rules])

    def __call__(self, ram: Array, was: Array) -> bool:
        return all(rule.margins.clear(ram, was, self.reach) for rule in self._rules)

    def allows(self, ram: Array, was: Array, action: int) -> bool:
        """The same for one action: others may be blocked."""
        return all(
            rule.margins(ram, was)[action] >= 0
            if isinstance(rule.margins, _Blocked)
            else rule.margins.clear(ram, was, self.reach)
            for rule in self._rules
        )

    def margins(self, ram: Array, was: Array) -> Array:
        """The smallest margin of every action [n]."""
        return np.min([rule.margins(ram, was) for rule in self._rules], axis=0)


class _OfStates:
    """A rule on live environments: what the Guardian asks."""

    def __init__(self, row: RuleRow, sight: Sight, actions: Sequence[str]) -> None:
        if row.kind not in KINDS:
            where = sight.game.file
            raise GxError(
                f"{where}: rule {row.name!r} is of kind {row.kind!r}; choose one of: {', '.join(KINDS)}"
            )
        self.margins: Margins = KINDS[row.kind](row, sight, actions)
        self._told = (row, sight.game, tuple(actions))

    @property
    def fingerprint(self) -> str:
        row, game, actions = self._told
        things = [t for t in game.things if t.name in row.things]
        return rules.fingerprint(
            CODE,
            expressions.CODE,
            SIGHT_CODE,
            repr(row),
            repr(game.player),
            repr(things),
            repr(game.names),
            actions,
        )

    def __call__(self, states: Sequence[Any]) -> Array:
        return np.stack([self.margins(*images(state)) for state in states])


def images(state: Any) -> tuple[Array, Array]:
    """RAM of now and of a step before: of our environment or, while a log is replayed, of ale-py's own."""
    if isinstance(state, AtariEnv):
        return state.ram(), state.previous_ram()
    frame = state.ale.getEpisodeFrameNumber()
    last: tuple[int, Array, Array] | None = getattr(state, "_rlpd_gx_images", None)
    if last is None or last[0] != frame:
        ram = state.ale.getRAM()
        last = frame, ram, (ram if last is None or last[0] > frame else last[1])
        state._rlpd_gx_images = last
    return last[1], last[2]


class _Collision:
    """Try each action for a step and then each way of going on, against things that move on as they did."""

    def __init__(self, row: RuleRow, sight: Sight, actions: Sequence[str]) -> None:
        self.sight, self.horizon = sight, row.horizon
        self.moves, self.keeps = _moves(sight.game, actions)
        unique, self.which = np.unique(np.c_[self.moves, self.keeps], axis=0, return_inverse=True)
        self.which = self.which.ravel()
        self.unique, self.goes_on = unique[:, :2].copy(), unique[:, 2].astype(bool)
        times = np.arange(row.every, row.horizon + row.every / 2, row.every)
        self.times = times
        first, later = np.minimum(times, 1), np.maximum(times - 1, 0)
        self._first, self._later = first, later
        self._paths = self._path(self.unique) if not self.goes_on.any() else None
        left, top, right, bottom = sight.player.area
        self.low, self.high, self.bounded = (left, top), (right, bottom), sight.player.area != Player.area
        self.threats: list[tuple[int, Box, float, int]] = []
        deadly: list[tuple[str, int]] = []
        after: list[tuple[str, int]] = []
        speeds: list[tuple[str, int]] = []
        for thing, first_member in zip(sight.moving, sight.first_member, strict=False):
            if thing.name not in row.things:
                continue
            for i in range(thing.count):
                for box in thing.kills:
                    m = row.margin
                    wide = (box[0] - m, box[1] - m, box[2] + m, box[3] + m)
                    speed = -1 if thing.speed is None else len(speeds) // 2
                    self.threats.append((first_member + i, wide, thing.wrap, speed))
                    speeds += [(e, i) for e in thing.speed or ()]
                    deadly.append((thing.deadly, i))
                    after.append((thing.after, i))
        for name in row.things:
            if name not in [thing.name for thing in sight.moving if thing.kills]:
                raise GxError(
                    f"{sight.game.file}: rule {row.name!r} names {name!r}, which is no moving thing that kills"
                )
        game, where = sight.game, sight.game.file

        def texts(rows: list[tuple[str, int]]) -> list[str]:
            return [expressions.for_one(expressions.parse(e, game.names, where), i) for e, i in rows]

        self._deadly = (
            expressions.function(texts(deadly), where) if {e for e, _ in deadly} != {"True"} else None
        )
        self._after = expressions.function(texts(after), where) if {e for e, _ in after} != {"0"} else None
        self._speeds = expressions.function(texts(speeds), where) if speeds else None
        self.maze = sight.player.maze
        same = (self.unique[:, None] == self.unique[None]).all(axis=-1) & (
            self.goes_on[:, None] == self.goes_on
        )
        turned = (self.unique[:, None] == -self.unique[None]).all(axis=-1) & ~self.goes_on[:, None]
        self.straight = same | turned  # the ways of going on that no wall can bar
        reach = np.abs(self.unique).max(axis=0) if len(self.unique) else np.zeros(2)
        self.fast_x, self.fast_y = float(reach[0]), float(reach[1])
        self.nothing = np.zeros(len(actions))
        self.nothing.flags.writeable = False

    def _path(self, moves: Array) -> list[Array]:
        """Where the player is, from where it was, for each action and way of going on: [u, u, T] for x and y."""
        return [m[:, None, None] * self._first + m[None, :, None] * self._later for m in moves.T]

    def __call__(self, ram: Array, was: Array) -> Array:
        scene = self.sight.scene(ram, was)
        if scene.player is None:
            return self.nothing
        near = self._near(scene, ram, was, self.horizon)
        if not near:
            return self.nothing
        places, speeds, boxes, after = near
        if self._paths is None:
            moves = self.unique.copy()
            moves[self.goes_on] = moved(scene.player_before, scene.player)
            paths = self._path(moves)
        else:
            paths = self._paths
        met: Any = True
        for axis in (0, 1):  # [O, u, u, T]: things, actions, ways of going on, times
            here = scene.player[axis]
            at = paths[axis] + here
            if self.bounded:
                at = np.clip(at, min(self.low[axis], here), max(self.high[axis], here))
            thing = np.array([place[axis] for place in places])[:, None] + np.multiply.outer(
                [speed[axis] for speed in speeds], self.times
            )
            middle = np.array([(box[axis] + box[axis + 2]) / 2 for box in boxes])[:, None]
            reach = np.array([(box[axis + 2] - box[axis]) / 2 for box in boxes])[:, None, None, None]
            met = met & (np.abs((thing - middle)[:, None, None] - at) <= reach)
        if after is not None:
            met &= self.times >= np.array(after)[:, None, None, None]
        hit = met[0] if len(met) == 1 else met.any(axis=0)
        if not hit.any():
            return self.nothing
        steps = np.where(hit.any(axis=-1), self.times[hit.argmax(axis=-1)], self.horizon + 1.0)
        steps = np.minimum(steps - TOUCH, self.horizon)
        heading = moved(scene.player_before, scene.player)
        best = self._in_a_maze(steps, heading) if self.maze else steps.max(axis=1)
        return (best - self.horizon)[self.which]

    def clear(self, ram: Array, was: Array, reach: float) -> bool:
        scene = self.sight.scene(ram, was)
        return scene.player is None or self._near(scene, ram, was, reach * self.horizon, self.maze) is None

    def _in_a_maze(self, steps: Array, heading: tuple[float, float]) -> Array:
        """Steps to the collision for each action [u]: what crosses the heading may be barred by a wall."""
        best = np.where(self.straight, steps, 0).max(axis=1)
        barred = self.goes_on if self.goes_on.any() else ~self.unique.any(axis=1)  # keeps going, or stands
        going_on = best[barred].min() if barred.any() else self.horizon
        along = (self.unique * heading).any(axis=1) & (self.unique[:, ::-1] * heading == 0).all(axis=1)
        return np.where(along | barred, best, np.minimum(best, going_on))

    def _near(self, scene: Scene, ram: Array, was: Array, horizon: float, may_turn: bool = False) -> Any:
        """Those that some way of moving meets within the horizon: places, speeds, kill boxes and when they count.

        None if there are none, as in most states: that is what makes a verdict cheap.
        """
        assert scene.player is not None
        px, py = scene.player
        heading = moved(scene.player_before, scene.player) if self.goes_on.any() else (0.0, 0.0)
        fast_x, fast_y = max(self.fast_x, abs(heading[0])), max(self.fast_y, abs(heading[1]))
        places, speeds, boxes, after = [], [], [], []
        speed_of = self._speeds and self._speeds(ram.tobytes(), was.tobytes())
        deadly = self._deadly and self._deadly(ram.tobytes(), was.tobytes())
        later = self._after and self._after(ram.tobytes(), was.tobytes())
        for n, (member, box, wrap, speed) in enumerate(self.threats):
            place = scene.places[member]
            if place is None or (deadly is not None and not deadly[n]):
                continue
            change = scene.change(member, wrap)
            vx, vy = change if speed_of is None or speed < 0 else speed_of[2 * speed : 2 * speed + 2]
            start = 0.0 if later is None else later[n]
            turn = max(abs(vx), abs(vy)) if may_turn else 0.0
            window = _overlap(place[0] - px, vx, box[0], box[2], fast_x + turn, start, horizon)
            if window is None or _overlap(place[1] - py, vy, box[1], box[3], fast_y + turn, *window) is None:
                continue
            places.append(place)
            speeds.append((vx, vy))
            boxes.append(box)
            after.append(start)
        if not places:
            return None
        return places, speeds, boxes, None if later is None else after


def _overlap(
    away: float, speed: float, low: float, high: float, fast: float, start: float, end: float
) -> tuple[float, float] | None:
    """When, in [start, end], something `away` at `speed` may be within low to high of a player this `fast`."""
    for distance, rate in (
        (away - high, speed - fast),
        (low - away, -speed - fast),
    ):  # distance + rate * t <= 0
        if rate < 0:
            start = max(start, distance / -rate)
        elif distance > 0:
            return None
        elif rate > 0:
            end = min(end, -distance / rate)
    return (start, end) if start <= end else None


class _MustReach:
    """A ball comes to a line: be there."""

    def __init__(self, row: RuleRow, sight: Sight, actions: Sequence[str]) -> None:
        self.sight, self.row = sight, row
        thing = next((t for t in sight.moving if t.name in row.things), None)
        if thing is None:
            raise GxError(f"{sight.game.file}: rule {row.name!r} names no moving thing")
        self.member, self.wrap = sight.first_member[sight.moving.index(thing)], thing.wrap
        self.along, self.across = (0, 1) if row.axis == "x" else (1, 0)
        self.moves = _moves(sight.game, actions)[0][:, self.across]
        area = sight.player.area
        self.low, self.high = area[self.across], area[self.across + 2]
        self.nothing = np.full(len(actions), row.speed * row.horizon)
        game = sight.game
        texts = (
            [expressions.for_one(expressions.parse(row.start, game.names, game.file), 0)] if row.start else []
        )
        self._start = expressions.function(texts, game.file) if texts else None

    def __call__(self, ram: Array, was: Array) -> Array:
        scene, row = self.sight.scene(ram, was), self.row
        ball = scene.places[self.member]
        if ball is None or scene.player is None:
            return self.nothing
        velocity = scene.change(self.member, self.wrap)
        toward = velocity[self.along]
        distance = row.at - ball[self.along]
        if toward * distance <= 0 or distance / toward > row.horizon:
            return self.nothing
        steps = distance / toward
        target = ball[self.across] + velocity[self.across] * steps
        low, high = row.bounce
        if high > low:
            target = low + abs((target - low + (high - low)) % (2 * (high - low)) - (high - low))
        start = (
            scene.player[self.across] if self._start is None else self._start(ram.tobytes(), was.tobytes())[0]
        )
        player = start + self.moves
        # At either end of its way the player stands still, however far it was sent.
        least = target - row.hit[1] if target - row.hit[1] > self.low else -np.inf
        most = target - row.hit[0] if target - row.hit[0] < self.high else np.inf
        missing = np.maximum(np.maximum(least - player, player - most), 0)
        return row.speed * max(steps - 1 - row.margin, 0) - missing

    def clear(self, ram: Array, was: Array, reach: float) -> bool:
        """Whether there is time for any place that the ball may come to, or to spare for where it will be."""
        scene, row = self.sight.scene(ram, was), self.row
        ball = scene.places[self.member]
        if ball is None or scene.player is None:
            return True
        toward, distance = scene.change(self.member, self.wrap)[self.along], row.at - ball[self.along]
        if toward * distance > 0:
            return bool(self(ram, was).min() >= SPARE_STEPS * row.speed)
        if distance * (row.at - row.turns) <= 0:  # it has passed
            return False
        away = max(
            abs(distance), abs(row.at - row.turns)
        )  # it turns back there or later, as fast as it ever is
        here = scene.player[self.across]
        needs = max(here - self.low, self.high - here) / row.speed + SPARE_STEPS
        return row.fastest > 0 and away / row.fastest >= needs


class _Resource:
    """Go back in time."""

    def __init__(self, row: RuleRow, sight: Sight, actions: Sequence[str]) -> None:
        game = sight.game
        texts = [
            expressions.for_one(expressions.parse(e, game.names, game.file), 0)
            for e in (row.left, row.needs, row.when)
        ]
        self._read = expressions.function(texts, game.file)
        self.back = np.array([_has(name, row.way) for name in actions])
        if not self.back.any():
            raise GxError(f"{game.file}: rule {row.name!r}: no action goes the way {row.way!r}")
        self.nothing = np.zeros(len(actions))

    def __call__(self, ram: Array, was: Array) -> Array:
        left, needs, counts = self._read(ram.tobytes(), was.tobytes())
        if not counts:
            return self.nothing
        spare = float(left - 1 - needs)
        return np.where(self.back, max(spare, 0.0), spare - 1)

    def clear(self, ram: Array, was: Array, reach: float) -> bool:
        left, needs, counts = self._read(ram.tobytes(), was.tobytes())
        return not counts or left - 1 - needs >= AMPLE_STEPS


class _Blocked:
    """Some actions are forbidden in some places."""

    def __init__(self, row: RuleRow, sight: Sight, actions: Sequence[str]) -> None:
        game = sight.game
        self._when = expressions.function(
            [expressions.for_one(expressions.parse(row.when, game.names, game.file), 0)], game.file
        )
        forbidden = np.array([_matches(name, row.forbid) for name in actions])
        if not forbidden.any():
            raise GxError(
                f"{game.file}: rule {row.name!r} forbids {row.forbid}, none of {', '.join(actions)}"
            )
        self.margins, self.nothing = np.where(forbidden, -1.0, 1.0), np.ones(len(actions))

    def __call__(self, ram: Array, was: Array) -> Array:
        return self.margins if self._when(ram.tobytes(), was.tobytes())[0] else self.nothing

    def clear(self, ram: Array, was: Array, reach: float) -> bool:
        return self(ram, was) is self.nothing


KINDS: dict[str, Callable[[RuleRow, Sight, Sequence[str]], Margins]] = {
    "collision": _Collision,
    "must reach": _MustReach,
    "resource": _Resource,
    "blocked": _Blocked,
}


def _moves(game: Game, actions: Sequence[str]) -> tuple[Array, Array]:
    """Pixels in a step [n, 2], and whether the action lets the player go on as before [n]."""
    assert game.player is not None
    given = game.player.moves
    rows, keeps = [], []
    for name in actions:
        plain = name.removesuffix("FIRE") or "NOOP"
        move = given.get(name, given.get(plain, (0.0, 0.0)))
        keeps.append(move == KEEPS)
        rows.append((0.0, 0.0) if isinstance(move, str) else move)
    return np.array(rows, float), np.array(keeps)


def _has(action: str, part: str) -> bool:
    """Whether an action's name has this part: UPLEFTFIRE has UP, LEFT and FIRE."""
    return part in action


def _matches(action: str, patterns: Sequence[str]) -> bool:
    """`UP` is that action, `UP+` every action with UP in it; with `!`, every action but those."""
    others = [p[1:] for p in patterns if p.startswith("!")]
    if others:
        return action not in others
    return any(_has(action, p[:-1]) if p.endswith("+") else action == p for p in patterns)
