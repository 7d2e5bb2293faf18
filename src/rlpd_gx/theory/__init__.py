"""Tabular guarded value iteration: the ground truth in tests of the learner."""

from rlpd_gx.theory.contraction import contraction_factor, random_mdp
from rlpd_gx.theory.files import load_mdp, save_mdp, save_solution
from rlpd_gx.theory.lures import LURES, Lure, lure_bandit, lure_corridor, lure_gate
from rlpd_gx.theory.mdp import TabularMDP
from rlpd_gx.theory.operators import greedy_policy, guarded_max, renormalise, soft_max, soft_policy
from rlpd_gx.theory.prune import Pruning, prune
from rlpd_gx.theory.solve import GuardedSolution, evaluate_policy, guarded_value_iteration

__all__ = [
    "LURES",
    "GuardedSolution",
    "Lure",
    "Pruning",
    "TabularMDP",
    "contraction_factor",
    "evaluate_policy",
    "greedy_policy",
    "guarded_max",
    "guarded_value_iteration",
    "load_mdp",
    "lure_bandit",
    "lure_corridor",
    "lure_gate",
    "prune",
    "random_mdp",
    "renormalise",
    "save_mdp",
    "save_solution",
    "soft_max",
    "soft_policy",
]
