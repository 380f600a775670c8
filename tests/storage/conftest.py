"""Each test of storage begins in an empty folder. `command` runs commands in this process."""

import json

import pytest

from transformer_norms.__main__ import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capfd):
    """Returns what runs a command: its exit code, its last line on stdout, or all of it where that
    is not JSON, and all of stderr."""

    def run(*typed):
        capfd.readouterr()
        code = main(list(typed))
        out, err = capfd.readouterr()
        return code, json.loads(out.splitlines()[-1]) if out.startswith("{") else out, err

    return run
