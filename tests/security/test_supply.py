"""The lock names every installed package by its hash, and a page names their licences."""

import re
from importlib import metadata

import pytest
from licences import DECLARED, LEFT_OUT, OPTIONAL, ROOT, brought, page, pinned  # of docs/

LOCK = (ROOT / "requirements.lock").read_text()


@pytest.mark.goal("X10")
def test_the_lock_has_the_versions_of_the_constraints_and_a_hash_for_all_but_torch(measured):
    versions = pinned()
    locked = pinned("requirements.lock")
    assert {**locked, "torch": versions["torch"]} == versions
    hashes = re.findall(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$", LOCK, re.MULTILINE)
    packages = re.findall(r"^[a-z].* \\$", LOCK, re.MULTILINE)
    assert len(hashes) + len(packages) == len(LOCK.splitlines())  # and names no place to ask
    for package, files in re.findall(r"^(\S+?)==.*\n((?:    .*\n)*)", LOCK, re.MULTILINE):
        assert "--hash=sha256:" in files, package
    measured(f"{len(packages)} packages, {len(hashes)} hashes")


@pytest.mark.goal("X10")
def test_what_this_package_brings_is_in_the_lock_and_installed_in_that_version():
    versions = pinned()
    for name in sorted(brought([*DECLARED, *OPTIONAL])):
        installed = metadata.version(name).partition("+")[0]  # torch names its build there
        assert versions.get(name) == installed, f"{name}: make setup"
    assert not LEFT_OUT & versions.keys()
    assert "torch" in brought(DECLARED)


@pytest.mark.goal("X10")
def test_the_setup_fetches_nothing_but_torch_without_a_hash():
    rule = (ROOT / "Makefile").read_text().partition(".venv/installed:")[2].partition("\n\n")[0]
    installs = [line for line in rule.splitlines() if "$(INSTALL)" in line]
    hashed = [line for line in installs if "--require-hashes --no-deps" in line]
    assert len(hashed) == 2
    assert hashed[1].endswith("--no-build-isolation --use-pep517 -r requirements.lock")
    assert [line.partition("$(INSTALL) ")[2] for line in installs if line not in hashed] == [
        "--no-warn-conflicts -c constraints.txt torch",
        "--no-deps --no-build-isolation -e .",
    ]
    assert "pip install" not in (ROOT / ".ci" / "run").read_text()  # it says make check, make test


def test_the_page_of_licences_is_what_the_packages_state():
    stated = (ROOT / "docs" / "licences.md").read_text()
    assert stated == page(), "make tables"
    assert all(f"\n| {name} | {version} | " in stated for name, version in pinned().items())
