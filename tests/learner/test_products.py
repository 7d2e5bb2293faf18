"""Matrix products of updates: as exact as others, and the setting of torch is left as it was."""

import pytest
import torch

from rlpd_gx.learner.products import ROUNDING, fast_products

CPU = torch.device("cpu")


def _error(found: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> float:
    exact = left.double() @ right.double()
    return float((found - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("shape", [(3, 1, 717, 18), (3, 128, 717, 128), (10, 256, 256, 256), (2, 7, 33, 5)])
def test_they_are_as_exact_as_float32(shape: tuple[int, int, int, int]) -> None:
    members, rows, inner, columns = shape
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(members, rows, inner, generator=generator)
    right = torch.randn(members, inner, columns, generator=generator)
    with fast_products(CPU):
        found = left @ right
        transposed = left.transpose(1, 2) @ found
    assert _error(found, left, right) < ROUNDING / 5
    assert _error(transposed, left.transpose(1, 2), found) < ROUNDING / 5


def test_the_check_would_notice_products_of_rounded_numbers() -> None:
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(128, 128, generator=generator) for _ in range(2))
    assert _error((left.bfloat16().float() @ right.bfloat16().float()), left, right) > 10 * ROUNDING


@pytest.mark.parametrize("chosen", ["none", "ieee", "tf32", "bf16"])
def test_the_setting_of_torch_is_left_as_it_was(chosen: str) -> None:
    setting = torch.backends.mkldnn.matmul
    setting.fp32_precision = chosen
    try:
        with pytest.raises(RuntimeError), fast_products(CPU), fast_products(CPU):
            torch.ones(2) @ torch.ones(3)
        assert setting.fp32_precision == chosen
        with fast_products(torch.device("cuda")):  # elsewhere nothing changes
            assert setting.fp32_precision == chosen
    finally:
        setting.fp32_precision = "none"
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_last_of_several_threads_puts_it_back() -> None:
    setting, first, second = torch.backends.mkldnn.matmul, fast_products(CPU), fast_products(CPU)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert setting.fp32_precision == "bf16"
    second.__exit__(None, None, None)
    assert setting.fp32_precision == "none"
