"""A 27th game: one file outside the package."""

import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.envs import atari
from rlpd_gx.envs.making import make
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import Guardian

TABLE = """
name = "SpaceInvaders"
actions = 6
sources = ["mila-iqia/atari-representation-learning ram_annotations.py (MIT)"]

[event]
kind = "life lost"

[player]
x = "ram[28] - 1"
y = "185"
size = [7, 10]
area = [35, 185, 117, 185]
[player.moves]
RIGHT = [4, 0]
LEFT = [-4, 0]

[[resources]]
name = "invaders left"
value = "ram[17]"
full = 36

[[rules]]
name = "stay in the middle"
kind = "blocked"
when = "ram[28] > 90"
forbid = ["RIGHT+"]
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "SpaceInvaders.toml"
    path.write_text(TABLE)
    return path


def test_it_is_played_seen_and_guarded(table):
    env = make(f"Atari/{table}-objects")
    assert env.unwrapped.feature_names == (
        "player present", "player x", "player y", "player change x", "player change y", "invaders left",
    )  # fmt: skip
    observation, _ = env.reset(seed=0)
    assert observation[-1] == 1.0
    safe = gx.GuardedEnv(env, atari.RamRules(env), state=atari.emulator_state)
    safe.reset(seed=0)
    right = env.unwrapped.action_meanings.index("RIGHT")
    places = []
    for _ in range(60):
        safe.step(right)
        places.append(int(env.unwrapped.ram()[28]))
    assert 80 < max(places) <= 96  # at 4 pixels a step
    assert "stay in the middle" in str(safe.audit)


def test_look_ahead_needs_only_its_event(table):
    env = atari.make(str(table))
    env.reset(seed=0)
    guardian = Guardian(env.action_space, atari.Lookahead(env, depth=4), embedding=env.embedding)
    assert np.asarray(guardian.safe_sets([env]).allowed).any()


def test_a_table_without_objects_can_still_be_played(table):
    table.write_text("\n".join(TABLE.splitlines()[:8]))
    atari.make(str(table)).reset(seed=0)
    with pytest.raises(GxError, match="has no RAM rules"):
        atari.RamRules(atari.make(str(table)))
    with pytest.raises(GxError, match=r"lacks \[player\]"):
        atari.make(str(table), "objects")
