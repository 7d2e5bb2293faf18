"""Exact answers found without the code under test.

Rationals for the hard operator, sixty digits for the soft one, a linear program for larger MDPs.
"""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog


def solve_linear(matrix, right):
    """Gauss-Jordan elimination in whatever field the entries belong to."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(len(rows)):
        pivot = max(range(column, len(rows)), key=lambda i: abs(rows[i][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [entry / rows[column][column] for entry in rows[column]]
        for other in range(len(rows)):
            if other != column:
                factor = rows[other][column]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[column], strict=True)]
    return [row[-1] for row in rows]


class ExactMDP:
    """The MDP that the floats mean, in the numbers of `field`: rows divided by their exact sums."""

    def __init__(self, transitions, rewards, discount, allowed, field):
        self.field, self.gamma, self.allowed = field, field(float(discount)), allowed
        self.states, self.actions, _ = transitions.shape
        self.p = [[self._normal(row) for row in state] for state in transitions.tolist()]
        self.r = [[self._reward(s, a, rewards) for a in range(self.actions)] for s in range(self.states)]

    def _normal(self, row):
        exact = [self.field(entry) for entry in row]
        return [entry / sum(exact) for entry in exact]

    def _reward(self, s, a, rewards):
        given = rewards[s, a].tolist()
        if rewards.ndim == 2:
            return self.field(given)
        return sum(p * self.field(r) for p, r in zip(self.p[s][a], given, strict=True))

    def q(self, values):
        def backup(s, a):
            return self.r[s][a] + self.gamma * sum(p * v for p, v in zip(self.p[s][a], values, strict=True))

        return [[backup(s, a) for a in range(self.actions)] for s in range(self.states)]

    def safe(self, s):
        return [a for a in range(self.actions) if self.allowed[s, a]]

    def evaluate(self, policy, bonus=None):
        """Values of a stochastic policy (rows of probabilities), plus a bonus per state."""
        actions, states = range(self.actions), range(self.states)
        chain = [[sum(policy[s][a] * self.p[s][a][t] for a in actions) for t in states] for s in states]
        matrix = [[self.field(int(s == t)) - self.gamma * chain[s][t] for t in states] for s in states]
        right = [sum(policy[s][a] * self.r[s][a] for a in actions) for s in states]
        if bonus is not None:
            right = [r + b for r, b in zip(right, bonus, strict=True)]
        return solve_linear(matrix, right)

    def pure(self, choice):
        return [[self.field(int(a == choice[s])) for a in range(self.actions)] for s in range(self.states)]

    def solve_hard(self):
        """Policy iteration: exact in rationals."""
        choice = [self.safe(s)[0] for s in range(self.states)]
        while True:
            values = self.evaluate(self.pure(choice))
            q = self.q(values)
            better = [
                max(self.safe(s), key=lambda a, s=s: (q[s][a], a == choice[s])) for s in range(self.states)
            ]
            if better == choice:
                return values, q
            choice = better

    def solve_soft(self, alpha):
        """Soft policy iteration (Newton's method) in sixty digits; quadratic, so it stops by itself."""
        alpha = Decimal(float(alpha))
        values = [Decimal(0)] * self.states
        for _ in range(200):
            q, policy, entropy = self.q(values), [], []
            for s in range(self.states):
                best = max(q[s][a] for a in self.safe(s))
                weights = [
                    ((q[s][a] - best) / alpha).exp() if self.allowed[s, a] else Decimal(0)
                    for a in range(self.actions)
                ]
                policy.append([w / sum(weights) for w in weights])
                entropy.append(-alpha * sum(p * p.ln() for p in policy[-1] if p > 0))
            improved = self.evaluate(policy, entropy)
            moved = max(abs(a - b) for a, b in zip(improved, values, strict=True))
            values = improved
            if moved <= Decimal("1e-40") * (1 + max(abs(v) for v in values)):
                return values, self.q(values)
        raise AssertionError("soft policy iteration did not settle")


def exact_hard(arrays):
    return ExactMDP(*arrays, Fraction).solve_hard()


def exact_soft(arrays, alpha):
    with localcontext() as context:
        context.prec = 60
        return ExactMDP(*arrays, Decimal).solve_soft(alpha)


def distance(floats, exact):
    """Largest difference between an array and exact numbers, itself exact."""
    flat = [e for row in exact for e in (row if isinstance(row, list) else [row])]
    return max(abs(Fraction(f) - Fraction(e)) for f, e in zip(np.ravel(floats).tolist(), flat, strict=True))


def lp_values(mdp):
    """Guarded values [S] as the smallest V with `V(s) >= q(s, a)` for every allowed action."""
    eye = sparse.csr_array(np.repeat(np.eye(mdp.num_states), mdp.num_actions, axis=0))
    safe = mdp.allowed.reshape(-1)
    answer = linprog(
        np.ones(mdp.num_states),
        A_ub=sparse.csr_array(mdp.discount * mdp.transitions - eye)[safe],
        b_ub=-mdp.rewards.reshape(-1)[safe],
        bounds=(None, None),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.success, answer.message
    return answer.x


@st.composite
def tiny_mdps(draw):
    """Up to 4 states, 3 actions: (transitions [S, A, S], rewards [S, A] or [S, A, S], discount, allowed)."""
    states, actions = draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def table(elements, *shape):
        size = int(np.prod(shape))
        return np.array(draw(st.lists(elements, min_size=size, max_size=size))).reshape(shape)

    weights = table(st.integers(0, 5), states, actions, states).astype(float)
    weights[..., 0] += weights.sum(axis=-1) == 0
    transitions = weights / weights.sum(axis=-1, keepdims=True)
    per_successor = (states,) if draw(st.booleans()) else ()
    rewards = table(st.floats(-1e3, 1e3), states, actions, *per_successor)
    discount = draw(st.one_of(st.just(0.0), st.floats(0, 0.999), st.sampled_from([0.5, 0.9, 0.99, 0.999])))
    allowed = table(st.booleans(), states, actions)
    allowed[np.arange(states), table(st.integers(0, actions - 1), states)] = True
    return transitions, rewards, discount, allowed


def reachable_tolerance(arrays, digits):
    """A tolerance of this many digits relative to the size of rounding errors: |R| / (1 - gamma)^2."""
    _, rewards, discount, _ = arrays
    return 10.0**-digits * (1.0 + np.abs(rewards).max()) / (1.0 - discount) ** 2
