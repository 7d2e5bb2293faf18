"""Settings of the whole test-suite."""

import os
import sys

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


def forget_modules(folder):
    """Those that were imported from this folder: the next test may write others of the same name."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{folder}{os.sep}"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def own_modules(request):
    """A test's own modules are gone after it."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        forget_modules(folder)


@pytest.fixture(autouse=True, scope="module")
def own_modules_of_a_file(tmp_path_factory):
    """And those that the tests of a file share, after the last of them."""
    yield
    forget_modules(tmp_path_factory.getbasetemp())


@pytest.fixture
def without_numba(monkeypatch):
    """Only the references project and sample, as where numba is not installed."""
    from rlpd_gx.replay import compiled as sampling
    from rlpd_gx.safe_sets import compiled as projection

    for module in (projection, sampling):
        monkeypatch.setattr(module, "kernel", lambda: None)
