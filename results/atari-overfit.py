"""Do critics of objects overfit? Returns of sticky random play in the games of tuning, predicted for held-out steps.

    python results/atari-overfit.py OUT.json

from the root of the project, with its environment. 40,000 steps without a guard, the last fifth held out; targets are
discounted returns, so nothing is bootstrapped. `disagree`: share of states in which two critics prefer different
actions.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from rlpd_gx.envs.making import make
from rlpd_gx.experiments.tuning import GAMES
from rlpd_gx.learner.networks import Ensemble, FlatEncoder
from rlpd_gx.learner.policy import FIRST_VALUES

STEPS, GAMMA, NEW_ACTION, BATCH, RATE, UPDATES = 40_000, 0.95, 0.3, 128, 3e-4, (2_000, 4_000, 6_000)
CRITICS = {  # members, width, dropout
    "3 of 2x128": (3, 128, 0.0),
    "3 of 2x128, dropout 0.3": (3, 128, 0.3),
    "3 of 2x128, dropout 0.5": (3, 128, 0.5),
    "10 of 2x64": (10, 64, 0.0),
}


def play(game: str) -> tuple[FlatEncoder, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Encoder, observations [n, k], actions [n], discounted returns [n] and the number of actions."""
    env = make(f"Atari/{game}-objects", clip_rewards=True, life_loss_ends=True)
    random, action = np.random.default_rng(0), 0
    observation, _ = env.reset(seed=0)
    seen, actions, rewards, ended = [], [], [], []
    for _ in range(STEPS):
        if random.random() < NEW_ACTION:
            action = int(random.integers(env.action_space.n))
        seen.append(observation)
        actions.append(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        ended.append(terminated or truncated)
        if ended[-1]:
            observation, _ = env.reset()
    value, returns = 0.0, np.zeros(STEPS, np.float32)
    for step in range(STEPS - 1, -1, -1):
        value = returns[step] = rewards[step] + (0.0 if ended[step] else GAMMA * value)
    encoder, rows = FlatEncoder(env.observation_space), torch.as_tensor(np.stack(seen))
    encoder.calibrate([rows[:3_000]])
    return encoder, rows, torch.as_tensor(actions), torch.as_tensor(returns), int(env.action_space.n)


def values(critics: Ensemble, x: torch.Tensor, dropout: float) -> torch.Tensor:
    """Q [N, B, n] with dropout after each hidden layer."""
    for layer, (weight, bias) in enumerate(critics.layers):
        if layer:
            x = F.dropout(F.relu(F.layer_norm(x, x.shape[-1:])), dropout)
        x = torch.baddbmm(bias, x.expand(len(weight), -1, -1), weight)
    return x


def explained(game: str) -> dict[str, list[dict[str, float]]]:
    """For each kind of critics, as they learn: explained share of held-out variance, and disagreement."""
    encoder, rows, actions, returns, n = play(game)
    features = encoder(rows)
    training, held_out = slice(0, STEPS * 4 // 5), slice(STEPS * 4 // 5, STEPS - 60)
    found: dict[str, list[dict[str, float]]] = {}
    for name, (members, width, dropout) in CRITICS.items():
        torch.manual_seed(0)
        random, initial = np.random.default_rng(0), torch.Generator().manual_seed(0)
        critics = Ensemble(members, (features.shape[1], width, width, n), layer_norm=True, generator=initial)
        critics.weights[-1].data.mul_(FIRST_VALUES)
        optimiser = torch.optim.Adam(critics.parameters(), lr=RATE)
        found[name] = []
        for update in range(1, max(UPDATES) + 1):
            drawn = torch.as_tensor(random.integers(training.stop, size=BATCH))
            taken = values(critics, features[drawn], dropout).gather(
                -1, actions[drawn][:, None].expand(members, -1, 1)
            )
            wanted = returns[drawn].expand(members, -1)
            loss = F.huber_loss(taken[..., 0], wanted, reduction="none").mean(dim=1).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if update in UPDATES:
                with torch.no_grad():
                    q = critics(features[held_out])
                predicted = q.mean(dim=0).gather(-1, actions[held_out][:, None])[:, 0]
                share = 1 - (predicted - returns[held_out]).square().mean() / returns[held_out].var()
                disagree = (q[0].argmax(dim=-1) != q[1].argmax(dim=-1)).float().mean()
                point = {"updates": update, "explained": float(share), "disagree": float(disagree)}
                found[name].append({key: round(value, 3) for key, value in point.items()})
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_text(json.dumps({game: explained(game) for game in GAMES}, indent=1) + "\n")
