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
    """command(*typed): the exit code, the JSON of stdout's last line, or all of it, and stderr."""

    def run(*typed):
        capfd.readouterr()
        code = main(list(typed))
        out, err = capfd.readouterr()
        return code, json.loads(out.splitlines()[-1]) if out.startswith("{") else out, err

    return run
