"""The 26 games of Atari-100k: the task, what is unsafe in each, and how dying shows in RAM."""

from rlpd_gx.envs.atari.cells import Cells
from rlpd_gx.envs.atari.env import AtariEnv, Clone, make, make_vec
from rlpd_gx.envs.atari.games import GAMES, Flag, Game, Resource, find_game
from rlpd_gx.envs.atari.lookahead import Emulator, Lookahead, QuickLookahead, emulator_state, unsafe_event
from rlpd_gx.envs.atari.objects import Objects, ObjectsObservation, objects_of
from rlpd_gx.envs.atari.ram_rules import RamRules

__all__ = [
    "GAMES",
    "AtariEnv",
    "Cells",
    "Clone",
    "Emulator",
    "Flag",
    "Game",
    "Lookahead",
    "Objects",
    "ObjectsObservation",
    "QuickLookahead",
    "RamRules",
    "Resource",
    "emulator_state",
    "find_game",
    "make",
    "make_vec",
    "objects_of",
    "state",
    "unsafe_event",
]

state = emulator_state  # what `--rules rlpd_gx.envs.atari:Lookahead` reads
