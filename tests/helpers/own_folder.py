"""Fixtures that a module of tests imports: a folder of its own, and reports without pictures."""

import pytest
from run_folders import skip_pictures


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_pictures(own_folder, monkeypatch):
    skip_pictures(monkeypatch)
