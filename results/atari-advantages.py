"""How much of the gain of the best action do critics find? Sticky random play in the games of tuning.

    python results/atari-advantages.py GAME OUT.json

from the root of the project, with its environment; about five minutes a game on one core. Critics learn discounted
returns of 32,000 steps. At 100 later states the truth is known: each action is tried in the emulator and followed by
the same 8 continuations of random play. `found` is the advantage of the action that critics prefer, as a share of the
best action's: 0 is what a random action has, 1 is all. It needs no training run, so it is less noisy than scores.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from rlpd_gx.envs.making import make
from rlpd_gx.learner.networks import Ensemble, FlatEncoder
from rlpd_gx.learner.policy import FIRST_VALUES

STEPS, LEARNED, STATES, CONTINUATIONS, HORIZON = 40_000, 32_000, 100, 8, 64
GAMMA, NEW_ACTION, BATCH, RATE, UPDATES, AHEAD = 0.95, 0.3, 128, 3e-4, (2_000, 5_000), 5
CRITICS = {  # dropout, and weight of predicting the objects of AHEAD steps later, reward and end
    "3 of 2x128, as in atari100k": (0.0, 0.0),
    "dropout 0.5": (0.5, 0.0),
    "predicting objects": (0.0, 10.0),
}


def continued(world, held: int, changes: np.ndarray) -> float:
    """Discounted signs of rewards from here on: an action is held until a change (>= 0) comes."""
    ale, total, lives = world.ale, 0.0, world.ale.lives()
    actions = ale.getMinimalActionSet()
    for step, change in enumerate(changes):
        held = int(change) if change >= 0 and step else held
        total += GAMMA**step * np.sign(sum(ale.act(actions[held]) for _ in range(4)))
        if ale.lives() < lives or ale.game_over():
            break
    return total


def play(game: str) -> tuple[FlatEncoder, dict[str, np.ndarray]]:
    """Random play, and at some states the mean return [n] after each action."""
    env = make(f"Atari/{game}-objects", clip_rewards=True, life_loss_ends=True)
    world, count = env.unwrapped, int(env.action_space.n)
    random, trying, action = np.random.default_rng(0), np.random.default_rng(1), 0
    asked = set(trying.choice(np.arange(LEARNED + AHEAD, STEPS - 100), STATES, replace=False).tolist())
    observation, _ = env.reset(seed=0)
    rows: dict[str, list] = {name: [] for name in ("seen", "action", "reward", "ended", "at", "truth")}
    for step in range(STEPS):
        if step in asked:
            here, returns = world.ale.cloneState(), np.zeros((CONTINUATIONS, count))
            for row in returns:
                new = trying.random(HORIZON) < NEW_ACTION
                changes = np.where(new, trying.integers(count, size=HORIZON), -1)
                for first in range(count):
                    world.ale.restoreState(here)
                    row[first] = continued(world, first, changes)
            world.ale.restoreState(here)
            rows["at"].append(step)
            rows["truth"].append(returns.mean(axis=0))
        if random.random() < NEW_ACTION:
            action = int(random.integers(count))
        rows["seen"].append(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        for name, value in {"action": action, "reward": reward, "ended": terminated or truncated}.items():
            rows[name].append(value)
        if rows["ended"][-1]:
            observation, _ = env.reset()
    return FlatEncoder(env.observation_space), {name: np.array(values) for name, values in rows.items()}


def hidden(critics: Ensemble, x: torch.Tensor, dropout: float) -> torch.Tensor:
    """The last hidden layer [N, B, width]."""
    for weight, bias in critics.layers[:-1]:
        x = torch.baddbmm(bias, x.expand(len(weight), -1, -1), weight)
        x = F.dropout(F.relu(F.layer_norm(x, x.shape[-1:])), dropout)
    return x


def found(encoder: FlatEncoder, played: dict[str, np.ndarray], dropout: float, predicting: float) -> list:
    """As critics learn: the share of the best advantage that they find."""
    torch.manual_seed(0)
    seen, action = torch.as_tensor(played["seen"]), torch.as_tensor(played["action"])
    encoder.calibrate([seen[:3_000]])
    features, count = encoder(seen), played["truth"].shape[1]
    reward, ended = torch.as_tensor(played["reward"]).float(), torch.as_tensor(played["ended"])
    returns, value = torch.zeros(STEPS), 0.0
    for step in range(STEPS - 1, -1, -1):
        value = returns[step] = reward[step] + (0.0 if ended[step] else GAMMA * value)
    critics = Ensemble(
        3, (features.shape[1], 128, 128, count), layer_norm=True, generator=torch.Generator().manual_seed(0)
    )
    critics.weights[-1].data.mul_(FIRST_VALUES)
    later = nn.ModuleList([nn.Linear(128 + count, 128), nn.Linear(128, features.shape[1] + 2)])
    optimiser = torch.optim.Adam([*critics.parameters(), *later.parameters()], lr=RATE)
    random, points = np.random.default_rng(0), []
    for update in range(1, max(UPDATES) + 1):
        rows = torch.as_tensor(random.integers(LEARNED, size=BATCH))
        inner = hidden(critics, features[rows], dropout)
        weight, bias = critics.layers[-1]
        taken = torch.baddbmm(bias, inner, weight).gather(-1, action[rows][:, None].expand(3, -1, 1))[..., 0]
        loss = F.huber_loss(taken, returns[rows].expand(3, -1), reduction="none").mean(dim=1).sum()
        if predicting:
            chosen = F.one_hot(action[rows], count).float().expand(3, -1, -1)
            guess = later[1](F.relu(later[0](torch.cat([inner, chosen], dim=-1))))
            on = torch.stack([~ended[rows + k] for k in range(AHEAD)]).all(dim=0).float()
            moved = (features[rows + AHEAD] - features[rows]).clamp(-3, 3) * on[:, None]
            facts = torch.stack([sum(reward[rows + k] for k in range(AHEAD)), 1 - on], dim=1)
            goal = torch.cat([moved, facts], dim=1).expand(3, -1, -1)
            error = F.huber_loss(guess, goal, reduction="none")
            loss = (
                loss + predicting * (error[..., :-2].mean(dim=-1) + error[..., -2:].sum(dim=-1)).mean(1).sum()
            )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if update in UPDATES:
            with torch.no_grad():
                best = critics(features[played["at"]]).mean(dim=0).argmax(dim=-1).numpy()
            advantage = played["truth"] - played["truth"].mean(axis=1, keepdims=True)
            share = advantage[np.arange(STATES), best].mean() / advantage.max(axis=1).mean()
            points.append({"updates": update, "found": round(float(share), 3)})
    return points


if __name__ == "__main__":
    torch.set_num_threads(1)
    encoder, played = play(sys.argv[1])
    result = {name: found(encoder, played, *how) for name, how in CRITICS.items()}
    Path(sys.argv[2]).write_text(json.dumps({sys.argv[1]: result}, indent=1) + "\n")
