"""What the pixel encoder must see: returns in recorded games of Pong, predicted from images that are centred or not.

    python results/pixels/encoder.py OUT.json

from the root of the project, with its environment. Eight of the ten recorded games are learned from, two are held out:
2,000 minibatches of 32 with random shifts, critics and Adam as the Learner has them. `none` is the encoder as it was
before it was centred, `0.5` the middle of the range.
"""

import gzip
import json
import sys
from pathlib import Path

import ale_py
import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F

from rlpd_gx.frames import SIDE, grey84
from rlpd_gx.learner.networks import PIXEL_FEATURES, Ensemble, PixelEncoder, random_shift
from rlpd_gx.learner.policy import FIRST_VALUES

GAMES = Path("src/rlpd_gx/envs/atari/offline/recorded/Pong.json.gz")
SPACE = gym.spaces.Box(0, 255, (4, SIDE, SIDE), np.uint8)
GAMMA, UPDATES, BATCH, RATE, TRAINING_GAMES = 0.97, 2_000, 32, 3e-4, 8


def recorded() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frames [n, 84, 84], discounted returns [n] and the number of the game [n]."""
    gym.register_envs(ale_py)
    log = json.loads(gzip.decompress(GAMES.read_bytes()))
    env = gym.make(log["env_id"], **log["kwargs"], obs_type="grayscale")
    ids = [action.value for action in env.unwrapped._action_set]
    frames, returns, games = [], [], []
    for number, episode in enumerate(log["episodes"]):
        image, _ = env.reset(seed=episode["seed"])
        for action in episode["ale_actions"]:
            frames.append(grey84(image))
            image = env.step(ids.index(action))[0]
        value, values = 0.0, []
        for reward in reversed(episode["rewards"]):
            value = np.sign(reward) + GAMMA * value
            values.append(value)
        returns += values[::-1]
        games += [number] * len(values)
    return np.stack(frames), np.array(returns, np.float32), np.array(games)


def explained(centre: str) -> list[dict[str, float]]:
    """Every 500 updates: share of the variance of held-out returns that is explained, and how much features vary."""
    generator, random = torch.Generator().manual_seed(0), np.random.default_rng(0)
    encoder = PixelEncoder(SPACE, PIXEL_FEATURES, generator)
    critics = Ensemble(3, (PIXEL_FEATURES, 128, 128, 1), layer_norm=True, generator=generator)
    critics.weights[-1].data.mul_(FIRST_VALUES)
    if centre == "none":
        encoder.centre.zero_()
    elif centre == "mean image":
        encoder.calibrate([stacked(training[::50])])
    optimiser = torch.optim.Adam([*encoder.parameters(), *critics.parameters()], lr=RATE)
    found = []
    for update in range(1, UPDATES + 1):
        rows = random.choice(training, BATCH)
        images = random_shift(stacked(rows), 4, generator)
        wanted = torch.as_tensor(returns[rows]).expand(3, -1)
        loss = F.huber_loss(critics(encoder(images))[..., 0], wanted, reduction="none").mean(dim=1).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if update % 500 == 0:
            with torch.no_grad():
                features = torch.cat([encoder(part) for part in stacked(held_out).split(256)])
                error = critics(features)[..., 0].mean(dim=0).numpy() - returns[held_out]
            share = 1 - float(np.mean(error**2) / returns[held_out].var())
            spread = float(features.std(dim=0).mean())
            found.append(
                {"updates": update, "explained": round(share, 3), "feature_spread": round(spread, 5)}
            )
    return found


def stacked(rows: np.ndarray) -> torch.Tensor:
    """Four frames of each row [k, 4, 84, 84]."""
    return torch.as_tensor(np.stack([frames[rows - back] for back in (3, 2, 1, 0)], axis=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    frames, returns, games = recorded()
    whole = np.flatnonzero(games[3:] == games[:-3]) + 3
    training, held_out = whole[games[whole] < TRAINING_GAMES], whole[games[whole] >= TRAINING_GAMES][::4]
    table = {centre: explained(centre) for centre in ("none", "0.5", "mean image")}
    Path(sys.argv[1]).write_text(json.dumps(table, indent=1) + "\n")
