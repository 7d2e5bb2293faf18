"""Objects with maps: what is where around the player, now and a little later, and where on the screen the player is."""

import numpy as np

from rlpd_gx import rules
from rlpd_gx.envs.atari.games import find_game
from rlpd_gx.envs.atari.objects import HEIGHT, LIMIT, WIDTH, Objects, Point, Scene
from rlpd_gx.types import Array

# Centres of the cells, in pixels from the player: finer near it. What lies beyond counts in the outermost cell.
COLUMNS = np.array([-40.0, -16.0, -6.0, 0.0, 6.0, 16.0, 40.0])
ROWS = np.array([-60.0, -24.0, -8.0, 0.0, 8.0, 24.0, 60.0])
AHEAD_STEPS = (0, 2)  # now, and after two steps at the speed of the last one
SCREEN_COLUMNS, SCREEN_ROWS = np.arange(0.0, WIDTH + 1, 16), np.arange(0.0, HEIGHT + 1, 15)
CODE = rules.code_of(__file__)  # part of the fingerprint


class Cells(Objects):
    """`Objects`, followed by maps in which a thing between two centres counts in both, by how near it is.

    For each kind of thing that moves, how many are in each of 7 x 7 cells around the player, now and ahead. For each
    kind that stays where it is, the same now, as log(1 + how many): dots are many. Last, the player in 11 x 15 cells of
    the screen, since walls and ladders are in ROM. That a shot is close above the player is one number here, and a
    product of several in `Objects`. Linear values of such places play Atari about as well as DQN (Liang et al., 2016).
    """

    @property
    def fingerprint(self) -> str:
        return rules.fingerprint(CODE, super().fingerprint)

    def _names(self) -> list[str]:
        kinds = [(thing, ahead) for ahead in AHEAD_STEPS for thing in self.sight.moving]
        around = [
            f"{thing.name} at {x:+.0f} {y:+.0f}{f' in {ahead} steps' if ahead else ''}"
            for thing, ahead in kinds + [(thing, 0) for thing in self.sight.fixed]
            for x in COLUMNS
            for y in ROWS
        ]
        screen = [f"player at {x:.0f} {y:.0f}" for x in SCREEN_COLUMNS for y in SCREEN_ROWS]
        return super()._names() + around + screen

    def __call__(self, ram: Array, was: Array) -> Array:
        numbers, scene = super().__call__(ram, was), self.sight.scene(ram, was)
        maps = [
            self._moving(scene),
            np.log1p(self._fixed_around(ram, scene.player)),
            _on_screen(scene.player),
        ]
        counts = np.concatenate([found.ravel() for found in maps])
        return np.concatenate((numbers, np.minimum(counts, LIMIT).astype(np.float32)))

    def _moving(self, scene: Scene) -> Array:
        """[ahead, kind, column, row] of things that move; all zeros without a player."""
        kinds = len(self.sight.moving)
        there = [
            (kind, *place, *scene.change(self.sight.first_member[kind] + i, thing.wrap))
            for kind, thing in enumerate(self.sight.moving)
            for i in range(thing.count)
            if (place := scene.places[self.sight.first_member[kind] + i]) is not None
        ]
        if scene.player is None or not there:
            return np.zeros((len(AHEAD_STEPS), kinds, len(COLUMNS), len(ROWS)))
        kind, x, y, change_x, change_y = np.array(there).T
        return np.stack(
            [
                _around(scene.player, kinds, kind.astype(int), x + ahead * change_x, y + ahead * change_y)
                for ahead in AHEAD_STEPS
            ]
        )

    def _fixed_around(self, ram: Array, player: Point) -> Array:
        """[kind, column, row] of things that stay where they are."""
        fixed = self.sight.fixed
        if player is None or not fixed:
            return np.zeros((len(fixed), len(COLUMNS), len(ROWS)))
        shown = np.array(self.sight.shown(ram), bool)
        kind = np.repeat(np.arange(len(fixed)), [thing.count for thing in fixed])[shown]
        return _around(player, len(fixed), kind, *self.sight.spots[shown].T)


def _around(player: tuple[float, float], kinds: int, kind: Array, x: Array, y: Array) -> Array:
    """[kinds, column, row]: how many things [k] are where around the player."""
    return _counted(kinds, kind, (COLUMNS, x - player[0]), (ROWS, y - player[1]))


def _on_screen(player: Point) -> Array:
    """[1, column, row]: where on the screen the player is."""
    if player is None:
        return np.zeros((1, len(SCREEN_COLUMNS), len(SCREEN_ROWS)))
    x, y = np.array(player)[:, None]
    return _counted(1, np.zeros(1, int), (SCREEN_COLUMNS, x), (SCREEN_ROWS, y))


def _counted(kinds: int, kind: Array, across: tuple[Array, Array], down: tuple[Array, Array]) -> Array:
    """[kinds, column, row]: things [k], each shared between the four cells around it; pairs of centres and values."""
    counts = np.zeros((kinds, len(across[0]), len(down[0])))
    column, right = _between(*across)
    row, below = _between(*down)
    for i, part in ((0, 1 - right), (1, right)):
        for j, of_part in ((0, 1 - below), (1, below)):
            np.add.at(counts, (kind, column + i, row + j), part * of_part)
    return counts


def _between(centres: Array, values: Array) -> tuple[Array, Array]:
    """The centre before each value [k], and how far on the way to the next one the value is, 0 to 1."""
    values = np.clip(values, centres[0], centres[-1])
    before = np.clip(np.searchsorted(centres, values, side="right") - 1, 0, len(centres) - 2)
    return before, (values - centres[before]) / (centres[before + 1] - centres[before])


ENCODERS = {"objects": Objects, "cells": Cells}  # observation -> what makes it from two RAM images


def encoder_of(observation: str, game: str) -> Objects:
    """The encoder of an observation, for a game by its name or the file of its table."""
    return ENCODERS[observation](find_game(game))
