"""Each test of data has a token cache for itself."""

import pytest


@pytest.fixture(autouse=True)
def cache(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_NORMS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
