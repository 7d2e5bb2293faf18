"""Action constraints of the public action-constrained RL benchmark (Kasaura et al., 2023) for MuJoCo tasks.

The rules read joint velocities w and angles theta from the simulator, since observations clip velocities at 10:
use them with `state=joint_state`. `TASKS` names the constraint for each environment.
"""

from typing import Any

import numpy as np

from rlpd_gx.rules import Rule, ellipsoid_rule, l1_rule, positive_sum_rule
from rlpd_gx.trees import Tree
from rlpd_gx.types import Info

LIMIT_POWER = 10.0
LIMIT_POWER_CHEETAH = 20.0
LIMIT_SINE = 0.1
LIMIT_REACHER = 0.05


def joint_state(env: Any, observation: Tree, info: Info) -> dict[str, np.ndarray]:
    """Velocity and angle of each actuated joint, from the simulator; batched for a vector of environments."""
    if hasattr(env, "envs"):
        each = [joint_state(e, None, {}) for e in env.envs]
        return {k: np.stack([s[k] for s in each]) for k in each[0]}
    simulator = env.unwrapped
    joints = simulator.model.actuator_trnid[:, 0]
    return {
        "velocity": simulator.data.qvel[simulator.model.jnt_dofadr[joints]].copy(),
        "angle": simulator.data.qpos[simulator.model.jnt_qposadr[joints]].copy(),
    }


def stored_joint_state(observations: np.ndarray) -> dict[str, np.ndarray]:
    """The same from stored observations [k, d] of Hopper, Walker2d and HalfCheetah, for offline data.

    Their last numbers are the velocities, the root's three first; before them are as many angles, without the
    root's position. Hopper and Walker2d clip velocities at 10: beyond that, stored power is underestimated.
    """
    joints = {11: 3, 17: 6}[observations.shape[-1]]
    return {"velocity": observations[..., -joints:], "angle": observations[..., 2 : 2 + joints]}


def _constant(state: dict[str, np.ndarray], value: float) -> np.ndarray:
    return np.full(state["velocity"].shape[:-1], value)


@positive_sum_rule(name="power", batched=True)
def power(state: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sum of max(w_i a_i, 0) <= 10: mechanical power put in (Hopper, Walker2d)."""
    return state["velocity"], _constant(state, LIMIT_POWER)


@l1_rule(name="absolute power", batched=True)
def absolute_power(state: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sum of |w_i a_i| <= 10: power put in or taken out (Hopper, Walker2d)."""
    return state["velocity"], _constant(state, LIMIT_POWER)


@l1_rule(name="absolute power", batched=True)
def cheetah_power(state: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sum of |w_i a_i| <= 20 (HalfCheetah)."""
    return state["velocity"], _constant(state, LIMIT_POWER_CHEETAH)


@ellipsoid_rule(name="bent joints", batched=True)
def bent_joints(state: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sum of a_i^2 sin^2 theta_i <= 0.1: little torque on bent joints (Hopper, Walker2d)."""
    return np.sin(state["angle"]) ** 2, _constant(state, LIMIT_SINE)


@ellipsoid_rule(name="small torque", batched=True)
def reacher_torque(state: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """a_1^2 + a_2^2 <= 0.05 (Reacher)."""
    return np.ones_like(state["velocity"]), _constant(state, LIMIT_REACHER)


state = joint_state  # what `rlpd-gx guard` lets these rules read
power_and_bent_joints: Rule = absolute_power & bent_joints

TASKS: dict[str, tuple[Rule, ...]] = {
    "Reacher-v5": (reacher_torque,),
    "HalfCheetah-v5": (cheetah_power,),
    "Hopper-v5": (power, power_and_bent_joints),
    "Walker2d-v5": (power, power_and_bent_joints),
}
