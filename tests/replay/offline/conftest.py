import os
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def cache_root(tmp_path, monkeypatch):
    """Each test has a cache of its own."""
    root = tmp_path / "cache"
    monkeypatch.setenv("RLPD_GX_CACHE", str(root))
    return root


@pytest.fixture
def nothing_cached(cache_root):
    """Afterwards the cache must hold no dataset, whole or partial."""
    yield
    assert not cache_root.exists() or list(cache_root.iterdir()) == []


@pytest.fixture
def shared_data():
    folder = Path(os.environ.get("RLPD_GX_SHARED", PROJECT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("the shared data is not here; set RLPD_GX_SHARED to the folder that holds data/")
    return folder
