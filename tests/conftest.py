"""Settings of the whole test-suite."""

import os

# before torch loads: tests run side by side, one thread each
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared: how long one example takes says nothing, and a failure must come back the next time.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=150
)
settings.load_profile("suite")


@pytest.fixture
def without_numba(monkeypatch):
    """Only the references project and sample, as where numba is not installed."""
    from rlpd_gx.replay import compiled as sampling
    from rlpd_gx.safe_sets import compiled as projection

    for module in (projection, sampling):
        monkeypatch.setattr(module, "kernel", lambda: None)
