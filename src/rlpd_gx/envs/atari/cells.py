"""Objects with maps around the player: which kinds of things are where, now and a little later."""

import numpy as np

from rlpd_gx import rules
from rlpd_gx.envs.atari.games import find_game
from rlpd_gx.envs.atari.objects import LIMIT, Objects, Scene
from rlpd_gx.types import Array

# Centres of the cells, in pixels from the player: finer near it. What lies beyond counts in the outermost cell.
COLUMNS = np.array([-40.0, -16.0, -6.0, 0.0, 6.0, 16.0, 40.0])
ROWS = np.array([-60.0, -24.0, -8.0, 0.0, 8.0, 24.0, 60.0])
AHEAD_STEPS = (0, 2)  # now, and after two steps at the speed of the last one
CODE = rules.code_of(__file__)  # part of the fingerprint


class Cells(Objects):
    """`Objects`, followed by a map for each kind of thing that moves: how many are in each of 7 x 7 cells.

    A thing between two centres counts in both, by how near it is. That a shot is close above the player is one number
    here, and a product of several in `Objects`. Linear values of such places play Atari about as well as DQN (Liang et
    al., 2016).
    """

    @property
    def fingerprint(self) -> str:
        return rules.fingerprint(CODE, super().fingerprint)

    def _names(self) -> list[str]:
        return super()._names() + [
            f"{thing.name} at {x:+.0f} {y:+.0f}{f' in {ahead} steps' if ahead else ''}"
            for ahead in AHEAD_STEPS
            for thing in self.sight.moving
            for x in COLUMNS
            for y in ROWS
        ]

    def __call__(self, ram: Array, was: Array) -> Array:
        numbers = super().__call__(ram, was)
        maps = self._maps(self.sight.scene(ram, was))
        return np.concatenate((numbers, np.minimum(maps, LIMIT).ravel().astype(np.float32)))

    def _maps(self, scene: Scene) -> Array:
        """[ahead, kind, column, row]; all zeros without a player."""
        maps = np.zeros((len(AHEAD_STEPS), len(self.sight.moving), len(COLUMNS), len(ROWS)))
        if scene.player is None:
            return maps
        px, py = scene.player
        found = [
            (kind, place[0] - px, place[1] - py, *scene.change(self.sight.first_member[kind] + i, thing.wrap))
            for kind, thing in enumerate(self.sight.moving)
            for i in range(thing.count)
            if (place := scene.places[self.sight.first_member[kind] + i]) is not None
        ]
        if found:
            kinds, dx, dy, change_x, change_y = np.array(found).T
            for ahead, here in zip(AHEAD_STEPS, maps, strict=True):
                self._add(here, kinds.astype(int), dx + ahead * change_x, dy + ahead * change_y)
        return maps

    @staticmethod
    def _add(maps: Array, kinds: Array, dx: Array, dy: Array) -> None:
        """Count things [k] into maps [kind, column, row], each shared between the four cells around it."""
        column, right = _between(COLUMNS, dx)
        row, below = _between(ROWS, dy)
        for i, across in ((0, 1 - right), (1, right)):
            for j, down in ((0, 1 - below), (1, below)):
                np.add.at(maps, (kinds, column + i, row + j), across * down)


def _between(centres: Array, values: Array) -> tuple[Array, Array]:
    """The centre before each value [k], and how far on the way to the next one the value is, 0 to 1."""
    values = np.clip(values, centres[0], centres[-1])
    before = np.clip(np.searchsorted(centres, values, side="right") - 1, 0, len(centres) - 2)
    return before, (values - centres[before]) / (centres[before + 1] - centres[before])


ENCODERS = {"objects": Objects, "cells": Cells}  # observation -> what makes it from two RAM images


def encoder_of(observation: str, game: str) -> Objects:
    """The encoder of an observation, for a game by its name or the file of its table."""
    return ENCODERS[observation](find_game(game))
