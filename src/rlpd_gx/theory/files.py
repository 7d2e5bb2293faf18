"""MDPs and solutions as .npz files. Nothing is unpickled, and results are written whole or not at all.

Keys of an MDP: `discount`; `allowed` bool [S, A]; `rewards` [S, A] or [S, A, S]; and `transitions` [S, A, S],
or the three arrays of a CSR matrix [S*A, S]: `transitions_data`, `transitions_indices`, `transitions_indptr`.
Optional: `fallback` [] or [S]; `inevitable` bool [S] (which states' allowed actions are such fallbacks).
Keys of a solution: `q`, `values`, `policy`, `error_bound`, `iterations`, `inevitable`, `discount`, `alpha`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from rlpd_gx.errors import GxError
from rlpd_gx.files import whole_file
from rlpd_gx.theory.mdp import TabularMDP
from rlpd_gx.theory.solve import GuardedSolution
from rlpd_gx.trees import Json
from rlpd_gx.types import Array
from rlpd_gx.untrusted import read_npz

_CSR = ("transitions_data", "transitions_indices", "transitions_indptr")
_KEYS = ("discount", "allowed", "rewards", "transitions", *_CSR, "fallback", "inevitable")


def load_mdp(path: str | Path) -> TabularMDP:
    """Read and check an MDP; errors name the file."""
    arrays = _read(Path(path))
    try:
        return _build(arrays)
    except GxError as error:
        raise GxError(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, Array]:
    if not path.exists():
        raise GxError(f"{path} does not exist; name an .npz file that holds an MDP")
    if path.is_dir():
        raise GxError(f"{path} cannot be read (Is a directory); check the file")
    try:
        return read_npz(path, _KEYS)
    except GxError as error:
        raise GxError(
            f"{path} is not a complete .npz file of plain arrays; write the MDP with numpy.savez"
        ) from error


def _build(arrays: dict[str, Array]) -> TabularMDP:
    is_sparse = "transitions" not in arrays and any(key in arrays for key in _CSR)
    needed = ("discount", "allowed", "rewards", *(_CSR if is_sparse else ("transitions",)))
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise GxError(f"the key '{missing[0]}' is missing; an MDP needs {', '.join(needed)}")
    discount, allowed = arrays["discount"], arrays["allowed"]
    if discount.shape != () or discount.dtype.kind not in "fiu":
        raise GxError(f"discount has shape {discount.shape} and holds {discount.dtype}; give one number")
    transitions: Any = (
        arrays["transitions"] if not is_sparse else _csr(allowed, *(arrays[key] for key in _CSR))
    )
    mdp = TabularMDP(transitions, arrays["rewards"], float(discount), allowed, arrays.get("fallback"))
    if "inevitable" not in arrays:
        return mdp
    inevitable = arrays["inevitable"]
    if inevitable.dtype != np.bool_ or inevitable.shape != (mdp.num_states,):
        raise GxError(f"inevitable must hold booleans of shape [S] = {(mdp.num_states,)}")
    return mdp.with_safe_sets(mdp.allowed, inevitable | mdp.inevitable)


def _csr(allowed: Array, data: Array, indices: Array, indptr: Array) -> sparse.csr_array:
    if allowed.ndim != 2:
        raise GxError(f"allowed has shape {allowed.shape}; give [S, A]")
    rows = allowed.size
    for name, part, kinds in zip(_CSR, (data, indices, indptr), ("biuf", "iu", "iu"), strict=True):
        if part.dtype.kind not in kinds:
            raise GxError(f"{name} holds {part.dtype}; store numbers, indices as whole ones")
    if indptr.shape != (rows + 1,):
        raise GxError(f"transitions_indptr has shape {indptr.shape}; allowed [S, A] asks for {(rows + 1,)}")
    try:
        return sparse.csr_array((data, indices, indptr), shape=(rows, allowed.shape[0]))
    except (ValueError, TypeError) as error:
        raise GxError(
            f"transitions_data, _indices and _indptr are no CSR matrix ({error}); check them"
        ) from None


def save_mdp(path: str | Path, mdp: TabularMDP) -> None:
    """Write an MDP that `load_mdp` reads."""
    arrays: Json = {"discount": mdp.discount, "allowed": mdp.allowed, "inevitable": mdp.inevitable}
    arrays["rewards"] = mdp.rewards
    if isinstance(mdp.transitions, np.ndarray):
        arrays["transitions"] = mdp.transitions.reshape(mdp.num_states, mdp.num_actions, mdp.num_states)
    else:
        csr = mdp.transitions
        arrays |= dict(zip(_CSR, (csr.data, csr.indices, csr.indptr), strict=True))
    _write(Path(path), arrays)


def save_solution(path: str | Path, mdp: TabularMDP, solution: GuardedSolution, alpha: float = 0.0) -> None:
    """Write a solution and the numbers needed to read it."""
    names = ("q", "values", "policy", "error_bound", "iterations")
    arrays = {name: getattr(solution, name) for name in names}
    _write(Path(path), arrays | {"inevitable": mdp.inevitable, "discount": mdp.discount, "alpha": alpha})


def _write(path: Path, arrays: Json) -> None:
    with whole_file(path) as file:
        np.savez(file, allow_pickle=False, **arrays)
