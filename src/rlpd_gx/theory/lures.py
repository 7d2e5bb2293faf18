"""MDPs with a lure: a forbidden action worth more than any allowed one, so an unguarded backup overestimates.

The exact values are closed forms, independent of the solver: ground truth for it and for the deep learner.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlpd_gx.errors import GxError
from rlpd_gx.theory.mdp import TabularMDP

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lure:
    """An MDP with a lure and its exact solutions.

    state, action: where the lure is, and which forbidden action. start: where an episode begins.
    terminal: the state that ends an episode, or None where it never ends.
    values: [S] under the guard. unguarded_values: [S] if the lure could be taken.
    soft_values: temperature alpha > 0 -> [S] under the guard.
    """

    name: str
    mdp: TabularMDP
    state: int
    action: int
    start: int
    terminal: int | None
    values: Floats
    unguarded_values: Floats
    soft_values: Callable[[float], Floats]

    @property
    def unguarded_mdp(self) -> TabularMDP:
        """The MDP with the lure allowed, and nothing else: terminal states still have their one action."""
        allowed = self.mdp.allowed.copy()
        allowed[self.state, self.action] = True
        return self.mdp.with_safe_sets(allowed, self.mdp.inevitable)


def lure_bandit(
    discount: float = 0.9, safe_rewards: Sequence[float] = (0.5, 1.0), lure_reward: float = 2.0
) -> Lure:
    """One state without end: each safe action pays its reward, the forbidden last one pays more.

    Here V = max r + gamma V, so V = max r / (1 - gamma); softly the maximum is a log-sum-exp.
    """
    if not safe_rewards or not lure_reward > max(safe_rewards):
        raise GxError(
            f"the lure pays {lure_reward}; it must pay more than every safe reward {tuple(safe_rewards)}"
        )
    rewards = np.array([[*safe_rewards, lure_reward]])
    lure = len(safe_rewards)
    mdp = TabularMDP(np.ones((1, lure + 1, 1)), rewards, discount, np.arange(lure + 1)[None, :] != lure)

    def soft_values(alpha: float) -> Floats:
        best = max(safe_rewards)
        bonus = alpha * math.log(sum(math.exp((reward - best) / alpha) for reward in safe_rewards))
        return np.array([(best + bonus) / (1 - discount)])

    values = np.array([max(safe_rewards) / (1 - discount)])
    unguarded_values = np.array([lure_reward / (1 - discount)])
    return Lure("bandit", mdp, 0, lure, 0, None, values, unguarded_values, soft_values)


def lure_corridor(
    length: int = 5, discount: float = 0.9, exit_reward: float = 1.0, jackpot: float = 10.0
) -> Lure:
    """A corridor: leave now for a small reward (action 0), or continue (action 1) to a forbidden jackpot.

    The error of an unguarded backup propagates back to states that are far from the lure.
    Under the guard V = exit reward everywhere; without it, V = gamma^(steps to the end) * jackpot.
    """
    if length < 1 or not 0 < exit_reward < discount ** (length - 1) * jackpot:
        raise GxError(
            f"a jackpot of {jackpot} at the end of {length} states does not lure: seen from the start "
            f"it must be worth more than the exit's {exit_reward}, and that more than 0"
        )
    last, end = length - 1, length
    transitions = np.zeros((length + 1, 2, length + 1))
    transitions[:, 0, end] = 1.0
    transitions[range(last), 1, range(1, length)] = 1.0
    transitions[last:, 1, end] = 1.0
    rewards = np.zeros((length + 1, 2))
    rewards[:length, 0] = exit_reward
    rewards[last, 1] = jackpot
    allowed = np.ones((length + 1, 2), dtype=bool)
    allowed[last:, 1] = False
    mdp = TabularMDP(transitions, rewards, discount, allowed)

    def soft_values(alpha: float) -> Floats:
        values = [0.0, exit_reward]
        while len(values) <= length:
            onward = discount * values[-1]
            values.append(exit_reward + alpha * math.log1p(math.exp((onward - exit_reward) / alpha)))
        return np.array(values[::-1])

    values = np.array([exit_reward] * length + [0.0])
    unguarded_values = np.array([jackpot * discount ** (last - state) for state in range(length)] + [0.0])
    return Lure("corridor", mdp, last, 1, 0, end, values, unguarded_values, soft_values)


def lure_gate(
    num_tries: int = 3, success: float = 0.25, discount: float = 0.9, goal_reward: float = 1.0
) -> Lure:
    """A gate: every safe action gets through with the same probability, the forbidden last one with certainty.

    Here V = p * goal + gamma (1 - p) V; softly, n equal actions add alpha * log n to each attempt.
    """
    if num_tries < 1 or not 0 < success < 1 or not goal_reward > 0:
        raise GxError(
            "a gate needs at least one safe action, a success probability inside (0, 1) and a reward above 0"
        )
    transitions = np.zeros((2, num_tries + 1, 2))
    transitions[0, :num_tries] = 1 - success, success
    transitions[0, num_tries, 1] = 1.0
    transitions[1, :, 1] = 1.0
    rewards = np.zeros((2, num_tries + 1, 2))
    rewards[0, :, 1] = goal_reward
    allowed = np.ones((2, num_tries + 1), dtype=bool)
    allowed[0, num_tries] = False
    allowed[1, 1:] = False
    mdp = TabularMDP(transitions, rewards, discount, allowed)
    stay = 1 - discount * (1 - success)

    def soft_values(alpha: float) -> Floats:
        return np.array([(success * goal_reward + alpha * math.log(num_tries)) / stay, 0.0])

    values = np.array([success * goal_reward / stay, 0.0])
    return Lure("gate", mdp, 0, num_tries, 0, 1, values, np.array([goal_reward, 0.0]), soft_values)


LURES: tuple[Callable[..., Lure], ...] = (lure_bandit, lure_corridor, lure_gate)
