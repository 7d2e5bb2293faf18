"""What TabularMDP refuses, in which words, and what it makes of Gymnasium's toy-text environments."""

import gymnasium
import numpy as np
import pytest
from scipy import sparse

import rlpd_gx as gx
from rlpd_gx.theory import TabularMDP, guarded_value_iteration

S, A = 4, 3


def good():
    """A fresh valid MDP's arguments."""
    return {
        "transitions": np.full((S, A, S), 1 / S),
        "rewards": np.zeros((S, A)),
        "discount": 0.9,
        "allowed": np.ones((S, A), dtype=bool),
    }


def entry(name, index, value):
    """One entry of one array spoilt."""

    def spoil(arguments):
        arguments[name][index] = value

    return spoil


def whole(**replacements):
    """Whole arguments replaced."""

    def spoil(arguments):
        arguments.update(replacements)

    return spoil


def by_successor(value):
    rewards = np.zeros((S, A, S))
    rewards[2, 1, 3] = value
    return rewards


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (entry("transitions", (2, 1, 3), 0.5), "state 2, action 1 sum to 1.25, not 1; normalise the row"),
        (entry("transitions", (2, 1), 0.0), "state 2, action 1 sum to 0, not 1"),
        (entry("transitions", (2, 1, 3), np.inf), "state 2, action 1 sum to inf"),
        (entry("transitions", (2, 1, 3), -0.1), "from state 2 by action 1 to state 3 is -0.1"),
        (entry("transitions", (2, 1, 3), np.nan), "from state 2 by action 1 to state 3 is nan"),
        (entry("rewards", (2, 1), np.nan), "reward of state 2, action 1 is nan; give a finite number"),
        (entry("rewards", (2, 1), -np.inf), "reward of state 2, action 1 is -inf"),
        (entry("rewards", (2, 1), 1e200), "reward of state 2, action 1 is 1e[+]200"),
        (whole(rewards=by_successor(np.nan)), "state 2, action 1, next state 3 is nan"),
        (
            whole(rewards=sparse.csr_array(by_successor(np.inf).reshape(-1, S))),
            "state 2, action 1, next state 3 is inf",
        ),
        (entry("allowed", 2, False), "state 2 allows none of its 3 actions; allow one, or declare"),
        (entry("allowed", slice(1, 4), False), r"state 1 allows none of its 3 actions \(and 2 more states\)"),
        (whole(fallback=A), "fallback of state 0 is action 3; actions are 0 to 2"),
        (whole(fallback=np.array([0, 0, -1, 0])), "fallback of state 2 is action -1"),
        (whole(fallback=0.5), "fallback must be one action or one per state"),
        (whole(fallback=np.zeros(3, dtype=int)), "fallback must be one action or one per state"),
        (whole(allowed=np.ones((S, A))), "allowed holds float64; give booleans"),
        (whole(allowed=np.ones((A, S), dtype=bool)), r"allowed has shape \(3, 4\); give \[S, A\] = \(4, 3\)"),
        (whole(rewards=np.zeros((A, S))), r"rewards has shape \(3, 4\)"),
        (whole(rewards=np.zeros((S, A - 1, S))), "rewards is for 4 states and 2 actions"),
        (whole(rewards=np.array([["a"] * A] * S)), "rewards holds <U1; give real numbers"),
        (
            whole(transitions=np.full((A, S, S), 1 / S)),
            r"it looks like \[A, S, S\]: use .transpose\(1, 0, 2\)",
        ),
        (whole(transitions=np.ones((S, S))), r"transitions has shape \(4, 4\); give \[S, A, S\]"),
        (whole(transitions=np.zeros((0, A, 0))), r"transitions has shape \(0, 3, 0\)"),
        (whole(transitions=np.ones((S, A, S), dtype=complex)), "transitions holds complex128"),
        (whole(transitions=sparse.csr_array((7, S))), r"sparse matrix of shape \(7, 4\); give \[S\*A, S\]"),
        (whole(transitions=[]), "transitions is an empty list"),
        (whole(transitions=[sparse.eye_array(S), np.eye(S)]), "transitions of action 1 is no scipy sparse"),
        (whole(transitions=[sparse.eye_array(S), sparse.eye_array(2)]), r"action 1 has shape \(2, 2\)"),
        (whole(discount=1.0), "discount is 1.0; give a number of at least 0 and below 1"),
        (whole(discount=-0.1), "discount is -0.1"),
        (whole(discount=float("nan")), "discount is nan"),
        (whole(discount="high"), "discount is high"),
    ],
)
def test_malformed_input_gets_a_sentence(spoil, sentence):
    arguments = good()
    TabularMDP(**arguments)
    spoil(arguments)
    with pytest.raises(gx.GxError, match=sentence):
        TabularMDP(**arguments)


@pytest.mark.parametrize(
    ("index", "value", "sentence"),
    [
        ((2, 1, 3), 0.5, "state 2, action 1 sum to 1.25, not 1"),
        ((2, 1, 3), -0.1, "from state 2 by action 1 to state 3 is -0.1"),
        ((2, 1, 3), np.nan, "from state 2 by action 1 to state 3 is nan"),
    ],
)
@pytest.mark.parametrize("form", ["stacked", "by action"])
def test_sparse_forms_name_state_and_action_too(index, value, sentence, form):
    arguments = good()
    arguments["transitions"][index] = value
    dense = arguments["transitions"]
    arguments["transitions"] = (
        sparse.csr_array(dense.reshape(-1, S))
        if form == "stacked"
        else [sparse.csr_array(dense[:, a]) for a in range(A)]
    )
    with pytest.raises(gx.GxError, match=sentence):
        TabularMDP(**arguments)


@pytest.mark.parametrize("wrong", [-1, S, 2**31 - 1])
def test_successors_that_do_not_exist_are_refused_before_compiled_code_follows_them(wrong):
    rows = sparse.csr_array(np.full((S * A, S), 1 / S))
    rows.indices[S * (2 * A + 1) + 3] = wrong
    with pytest.raises(gx.GxError, match=f"state 2, action 1 leads to state {wrong}, which does not exist"):
        TabularMDP(**{**good(), "transitions": rows})


def test_row_pointers_that_run_backwards_are_refused():
    rows = sparse.csr_array(np.full((S * A, S), 1 / S))
    rows.indptr[8] = 0
    with pytest.raises(gx.GxError, match="indptr decreases at state 2, action 1"):
        TabularMDP(**{**good(), "transitions": rows})


def test_large_tables_are_shared_not_copied():
    arguments = good()
    rows = sparse.csr_array(arguments["transitions"].reshape(-1, S))
    assert np.shares_memory(TabularMDP(**arguments).transitions, arguments["transitions"])
    assert np.shares_memory(TabularMDP(**{**arguments, "transitions": rows}).transitions.data, rows.data)


@pytest.mark.parametrize("fallback", [1, np.array([0, 0, 1, 0])])
def test_a_declared_fallback_runs_where_nothing_is_allowed(fallback):
    arguments = good()
    arguments["rewards"][2] = [5.0, 1.0, 7.0]
    arguments["allowed"][2] = False
    mdp = TabularMDP(**arguments, fallback=fallback)
    assert mdp.inevitable.tolist() == [False, False, True, False]
    assert guarded_value_iteration(mdp, 1e-9).policy[2] == 1
    assert not arguments["allowed"][2].any(), "the caller's array stays as it was"
    assert "1 inevitable states" in repr(mdp)


def test_successors():
    transitions = np.zeros((2, 1, 2))
    transitions[:, 0] = [[0.25, 0.75], [0.0, 1.0]]
    for table in (transitions, sparse.csr_array(transitions[:, 0])):
        mdp = TabularMDP(table, np.zeros((2, 1)), 0.5, np.ones((2, 1), dtype=bool))
        states, probabilities = mdp.successors(0, 0)
        assert states.tolist() == [0, 1]
        assert probabilities.tolist() == [0.25, 0.75]
        assert mdp.successors(1, 0)[0].tolist() == [1]


def rollout(env, policy, seed, discount):
    """Discounted return of one episode, and its first state."""
    state, _ = env.reset(seed=seed)
    first, total, weight = state, 0.0, 1.0
    for _ in range(200):
        state, reward, terminated, _, _ = env.step(int(policy[state]))
        total, weight = total + weight * reward, weight * discount
        if terminated:
            break
    return first, total


@pytest.mark.parametrize(
    ("name", "options"),
    [("FrozenLake-v1", {"is_slippery": False}), ("CliffWalking-v1", {}), ("Taxi-v4", {})],
)
def test_toy_text_values_are_the_returns_of_real_episodes(name, options):
    """The environments are deterministic, so one episode of the optimal policy returns exactly its value."""
    with gymnasium.make(name, **options) as wrapped:
        env = wrapped.unwrapped
        solution = guarded_value_iteration(TabularMDP.from_gymnasium(env, 0.95), 1e-10)
        assert len(solution.values) == env.observation_space.n + 1
        assert solution.values[-1] == pytest.approx(0, abs=1e-10)
        for seed in range(20):
            first, total = rollout(env, solution.policy, seed, 0.95)
            assert total == pytest.approx(solution.values[first], abs=1e-9)


def test_frozen_lake_has_its_known_values():
    with gymnasium.make("FrozenLake-v1", is_slippery=False) as env:
        values = guarded_value_iteration(TabularMDP.from_gymnasium(env, 0.9), 1e-12).values
        slippery = TabularMDP.from_gymnasium(gymnasium.make("FrozenLake-v1"), 0.9)
    assert values[0] == pytest.approx(0.9**5)
    assert values[[5, 7, 11, 12, 15]] == pytest.approx(0.0, abs=1e-12)
    states, probabilities = slippery.successors(0, 0)
    assert states.tolist() == [0, 4]
    np.testing.assert_allclose(probabilities, [2 / 3, 1 / 3])


def test_after_termination_nothing_is_bootstrapped():
    """Following Taxi's table past `terminated` would deliver the passenger again and again."""
    with gymnasium.make("Taxi-v4") as env:
        table = env.unwrapped.P
        mdp = TabularMDP.from_gymnasium(env, 0.9)
    careless = np.zeros((500, 6, 500))
    rewards = np.zeros((500, 6))
    for state, by_action in table.items():
        for action, outcomes in by_action.items():
            for probability, successor, reward, _ in outcomes:
                careless[state, action, successor] += probability
                rewards[state, action] += probability * reward
    endless = guarded_value_iteration(TabularMDP(careless, rewards, 0.9, np.ones((500, 6), dtype=bool)), 1e-9)
    proper = guarded_value_iteration(mdp, 1e-9)
    assert proper.values.max() == pytest.approx(20.0)
    assert endless.values.max() > 21.0


def test_terminal_states_earn_no_entropy_in_the_soft_solution():
    with gymnasium.make("FrozenLake-v1") as env:
        soft = guarded_value_iteration(TabularMDP.from_gymnasium(env, 0.9), 1e-9, alpha=1.0)
    assert soft.values[-1] == pytest.approx(0.0, abs=1e-9)


def test_a_rule_keeps_the_walker_from_the_cliff():
    """Row 2 is forbidden next to the cliff, so the shortest way along it costs two steps more."""
    with gymnasium.make("CliffWalking-v1") as env:
        free = guarded_value_iteration(TabularMDP.from_gymnasium(env, 0.99), 1e-8)
        near_cliff = set(range(25, 35))
        table = env.unwrapped.P
        mdp = TabularMDP.from_gymnasium(env, 0.99, allowed=lambda s, a: table[s][a][0][1] not in near_cliff)
        mask = mdp.allowed[:-1].copy()
        again = TabularMDP.from_gymnasium(env, 0.99, allowed=mask, fallback=np.zeros(48, dtype=int))
    guarded = guarded_value_iteration(mdp, 1e-8)
    assert free.values[36] == pytest.approx(-sum(0.99**t for t in range(13)))
    assert guarded.values[36] == pytest.approx(-sum(0.99**t for t in range(15)))
    np.testing.assert_array_equal(again.allowed, mdp.allowed)


def test_environments_without_a_table_are_refused():
    with gymnasium.make("Blackjack-v1") as env, pytest.raises(gx.GxError, match="has no transition table P"):
        TabularMDP.from_gymnasium(env, 0.9)


def test_a_mask_of_another_size_is_refused():
    with gymnasium.make("Taxi-v4") as env, pytest.raises(gx.GxError, match=r"allowed has shape \(3, 6\)"):
        TabularMDP.from_gymnasium(env, 0.9, allowed=np.ones((3, 6), dtype=bool))
