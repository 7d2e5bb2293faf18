"""Cells: objects as before, then maps that count every thing once, where it is and where it will be."""

import math

import numpy as np
import pytest
from tests.envs.atari.slow_objects import Table
from tests.envs.atari.test_objects import played

from rlpd_gx.envs import atari
from rlpd_gx.envs.atari.cells import AHEAD_STEPS, COLUMNS, ROWS, SCREEN_COLUMNS, SCREEN_ROWS
from rlpd_gx.envs.atari.objects import LIMIT, moved
from rlpd_gx.envs.atari.offline import sets_of
from rlpd_gx.replay.offline import load


def shares(centres, value):
    """How much of a thing is in each cell along one axis: a triangle around each centre, flat beyond the ends."""
    return [float(np.interp(value, centres, np.eye(len(centres))[cell])) for cell in range(len(centres))]


def add(maps, name, axes, suffix=""):
    """Count one thing in the cells around (x, y); `axes` are pairs of centres and place."""
    (columns, dx), (rows, dy) = axes
    for x, across in zip(columns, shares(columns, dx), strict=True):
        for y, down in zip(rows, shares(rows, dy), strict=True):
            key = name.format(x=x, y=y) + suffix
            maps[key] = maps.get(key, 0.0) + across * down


def slow_maps(env):
    """Every map, thing by thing; the objects themselves have a slow reference of their own."""
    sight = env._objects.sight
    scene = sight.scene(env.ram(), env.previous_ram())
    maps = {}
    if scene.player is None:
        return maps
    px, py = scene.player
    for ahead in AHEAD_STEPS:
        for kind, thing in enumerate(sight.moving):
            for member in range(sight.first_member[kind], sight.first_member[kind + 1]):
                if scene.places[member] is None:
                    continue
                x, y = scene.places[member]
                vx, vy = moved(scene.places_before[member], scene.places[member], thing.wrap)
                axes = (COLUMNS, x - px + ahead * vx), (ROWS, y - py + ahead * vy)
                add(maps, thing.name + " at {x:+.0f} {y:+.0f}", axes, f" in {ahead} steps" if ahead else "")
    still, shown, first = {}, sight.shown(env.ram()), 0
    for thing in sight.fixed:
        for i in range(first, first + thing.count):
            if shown[i]:
                x, y = sight.spots[i]
                add(still, thing.name + " at {x:+.0f} {y:+.0f}", ((COLUMNS, x - px), (ROWS, y - py)))
        first += thing.count
    maps |= {name: math.log1p(count) for name, count in still.items()}
    add(maps, "player at {x:.0f} {y:.0f}", ((SCREEN_COLUMNS, px), (SCREEN_ROWS, py)))
    return maps


@pytest.mark.parametrize("game", list(atari.GAMES))
def test_cells_are_objects_and_the_maps_of_a_slow_reference(game):
    env = atari.make(game, "cells")
    names, table, occupied = env.feature_names, Table(game), 0
    count = len(atari.make(game, "objects").feature_names)
    assert len(set(names)) == len(names) == env.observation_space.shape[0]
    for step, observation in enumerate(played(env, 150)):
        assert env.observation_space.contains(observation)
        if step % 15 == 1:
            slow, objects = slow_maps(env), table.observation(env.ram(), env.previous_ram())
            want = [objects[name] for name in names[:count]] + [
                min(slow.get(name, 0.0), LIMIT) for name in names[count:]
            ]
            np.testing.assert_allclose(observation, np.array(want, np.float32), atol=1e-6)
            occupied += len(slow)
    assert occupied, "no thing was in sight: this proves nothing"


def test_a_map_is_around_the_player():
    """Pong's ball passes the paddle: it is counted on one side of it, then on the other."""
    env = atari.make("Pong", "cells")
    names = env.feature_names
    left = [i for i, name in enumerate(names) if name.startswith("ball at -") and "in 2" not in name]
    right = [
        i
        for i, name in enumerate(names)
        if name.startswith("ball at +") and "at +0 " not in name and "in 2" not in name
    ]
    seen = np.array(list(played(env, 200)))
    place = names.index("ball from player x")
    ball = seen[:, names.index("ball present")] > 0
    assert (seen[ball][:, left].sum(axis=1) > 0)[seen[ball][:, place] < 0].all()
    assert (seen[ball][:, right].sum(axis=1) == 0)[seen[ball][:, place] < 0].all()
    assert (seen[ball][:, place] < 0).any()


def test_a_replayed_log_has_the_objects_and_maps_of_the_same_steps(tmp_path):
    log = sets_of("Pong")["planner"]
    found = {
        kind: load(
            log, options={"observation": kind}, root=tmp_path / kind, progress=False
        ).timeline.observation
        for kind in ("objects", "cells")
    }
    names = atari.make("Pong", "cells").feature_names
    count = found["objects"].shape[1]
    assert found["cells"].shape[1] == len(names)
    np.testing.assert_array_equal(found["cells"][:, :count], found["objects"])
    balls = [i for i, name in enumerate(names) if name.startswith("ball at") and "in 2" not in name]
    there = found["objects"][:, names.index("ball present")]
    assert set(there) == {0.0, 1.0}
    np.testing.assert_allclose(found["cells"][:, balls].sum(axis=1), there, atol=1e-6)
