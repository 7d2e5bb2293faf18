"""Learning from images: the shift of the augmentation, who trains the encoder, and a task that pixels decide."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from batches import batch

from rlpd_gx.learner import LearnerConfig, SacContinuous, SacDiscrete, SoftDiscrete
from rlpd_gx.learner.networks import PixelEncoder, random_shift

SIZE, ROWS = 36, 32
IMAGES = gym.spaces.Box(0, 255, (2, SIZE, SIZE), np.uint8)
CONFIG = LearnerConfig(
    ensemble_size=2,
    target_subset=1,
    hidden_sizes=(32,),
    learning_rate=1e-3,
    temperature=0.03,
    target_entropy="fixed",
    backup="none",
    actor="raw",
    clone_weight=(0.0,),
)


def _shifts(images: np.ndarray, moved: np.ndarray, pixels: int) -> list[list[tuple[int, int]]]:
    """Every shift that turns each image into its moved one: DrQ's pad by the border, then crop."""
    size = images.shape[-1]
    around = ((0, 0), (0, 0), (pixels, pixels), (pixels, pixels))
    padded = np.pad(images, around, mode="edge")
    found: list[list[tuple[int, int]]] = [[] for _ in images]
    for y in range(2 * pixels + 1):
        for x in range(2 * pixels + 1):
            crop = padded[:, :, y : y + size, x : x + size]
            for row in np.flatnonzero((crop == moved).all(axis=(1, 2, 3))):
                found[row].append((y - pixels, x - pixels))
    return found


def test_random_shift_pads_by_the_border_and_crops() -> None:
    pixels, count = 2, 800
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 8, 8), np.uint8)
    generator = torch.Generator().manual_seed(1)
    moved = random_shift(torch.as_tensor(images), pixels, generator)
    assert moved.dtype == torch.uint8
    found = _shifts(images, moved.numpy(), pixels)
    assert {len(shifts) for shifts in found} == {1}  # images of noise: the shift is unique
    seen = [shifts[0] for shifts in found]
    counts = [seen.count(shift) for shift in {*seen}]
    assert len(counts) == (2 * pixels + 1) ** 2
    assert max(abs(n - count / 25) for n in counts) < 5 * np.sqrt(count / 25)
    wrapped = np.roll(images, 1, axis=-1)  # a shift that does not repeat the border is not accepted
    assert not any(_shifts(images, wrapped, pixels))


def test_no_shift_leaves_images_and_generator_alone() -> None:
    images, generator = torch.zeros(1, 1, 4, 4), torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert random_shift(images, 0, generator) is images
    assert torch.equal(generator.get_state(), before)


def _task(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, and the bright half of the newest frame, which is the rewarded action; the older frame is noise."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 60, (ROWS, 2, SIZE, SIZE), dtype=np.uint8)
    side = generator.integers(2, size=ROWS)
    for image, right in zip(images, side, strict=True):
        half = slice(SIZE // 2, None) if right else slice(0, SIZE // 2)
        image[1, :, half] += 150
    return images, side, generator.integers(2, size=ROWS)


def _learner(continuous: bool, actor: Any = "raw") -> Any:
    if continuous:
        return SacContinuous(CONFIG, IMAGES, gym.spaces.Box(-1, 1, (1,), np.float32), seed=0)
    kind = SoftDiscrete if actor == "auto" else SacDiscrete
    return kind(replace(CONFIG, actor=actor), IMAGES, gym.spaces.Discrete(2), seed=0)


def _batch(seed: int, continuous: bool = False) -> Any:
    """Episodes of one step: reward 1 for the action that the image asks for."""
    images, side, action = _task(seed)
    taken = action[:, None].astype(np.float32) if continuous else action
    return batch(images, taken, action == side, images, np.zeros(ROWS))


@pytest.mark.parametrize("actor", ["auto", "raw"])
def test_a_policy_finds_the_action_that_pixels_ask_for(actor: str) -> None:
    learner = _learner(continuous=False, actor=actor)
    assert isinstance(learner.critic["encoder"], PixelEncoder)
    errors = [learner.update(_batch(seed))["td_error"] for seed in range(60)]
    assert np.mean(errors[-10:]) < 0.2  # that of the best constant value is 0.5
    images, side, action = _task(10_000)  # images that it has not seen
    with torch.no_grad():
        q = learner.critic["ensemble"](learner.encode(torch.as_tensor(images))).mean(dim=0).numpy()
    assert np.abs(q[np.arange(ROWS), action] - (action == side)).mean() < 0.15
    assert (learner.act(images, explore=False) == side).all()
    mirrored = np.ascontiguousarray(images[..., ::-1])  # the other half is bright: the other action is right
    assert (learner.act(mirrored, explore=False) == 1 - side).all()


def _spot(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A small spot before a still, bright background, as in many games, and the side on which it is."""
    generator = np.random.default_rng(seed)
    still = np.random.default_rng(0).integers(60, 200, (2, SIZE, SIZE), dtype=np.uint8)
    images, side = np.repeat(still[None], ROWS, axis=0), generator.integers(2, size=ROWS)
    for image, right in zip(images, side, strict=True):
        y, x = generator.integers(SIZE - 4), generator.integers(SIZE // 2 - 4) + right * SIZE // 2
        image[:, y : y + 4, x : x + 4] = 255
    return images, side


@pytest.mark.parametrize("centre", ["mean image", "none"])
def test_a_small_spot_is_seen_before_a_still_background(centre: str) -> None:
    """Uncentred, all images come to have the same features: the encoder of before, which this test must refuse."""
    learner = _learner(continuous=False, actor="auto")
    encoders = [learner.critic["encoder"], learner.target["encoder"], learner.average.encoder]
    if centre == "mean image":
        learner.calibrate([_spot(seed)[0] for seed in range(1_000, 1_010)])
        mean = torch.as_tensor(np.concatenate([_spot(seed)[0] for seed in range(1_000, 1_010)]) / 255).mean(0)
        assert all(torch.allclose(e.centre, mean.float(), atol=1e-6) for e in encoders)
    else:
        for encoder in encoders:
            encoder.centre.zero_()
    errors = []
    for seed in range(400):
        images, side = _spot(seed)
        action = np.random.default_rng(10_000 + seed).integers(2, size=ROWS)
        found = learner.update(batch(images, action, action == side, images, np.zeros(ROWS)))
        errors.append(found["td_error"])
    learned = np.mean(errors[-50:]) < 0.2  # that of the best constant value is 0.5
    assert learned == (centre == "mean image")


def test_images_are_centred_whatever_the_settings_say() -> None:
    plain = replace(CONFIG, normalise=False)
    actions, numbers = gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (3,))
    assert SacDiscrete(plain, IMAGES, actions).calibrates
    assert not SacDiscrete(plain, numbers, actions).calibrates
    assert SacDiscrete(replace(CONFIG, normalise=True), numbers, actions).calibrates


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
def test_critics_train_the_encoder_and_the_actor_does_not(continuous: bool) -> None:
    learner = _learner(continuous)
    minibatch = learner._minibatch(_batch(0, continuous), 0)

    def critics() -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in learner.critic.state_dict().items()}

    before, actor = critics(), [p.clone() for p in learner.actor.parameters()]
    learner._update_actor(minibatch, 0, 0.1)
    assert not all(torch.equal(a, b) for a, b in zip(actor, learner.actor.parameters(), strict=True))
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.critic.state_dict().items())
    learner._update_critics(minibatch, learner._next_policies([minibatch])[0], 0)
    assert not any(torch.equal(before[name], tensor) for name, tensor in learner.critic.named_parameters())
