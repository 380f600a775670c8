"""One reader opens every file that anybody may have written, and believes nothing unchecked."""

import ast
import os
import re
from pathlib import Path

import pytest
from no_files import LIMIT, NO_FILES, bounded  # noqa: F401  what hangs ends its test
from refusing import refused

from transformer_norms.storage.reading import (
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_yaml,
)

PACKAGE = Path(__file__).parents[2] / "transformer_norms"
NAMES = {"/dev/zero": "not a file, but a device", "a\0b": "is not a path", "x" * 5000: "too long"}


@pytest.mark.goal("X1", "X7")
@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_plain_file_of_bounded_size_is_one_line(what):
    make, said = NO_FILES[what]
    make(Path("file"))
    line = refused(read_bytes, Path("file"), LIMIT)
    assert line.startswith("file: ")
    assert said in line


def test_a_device_and_a_name_that_can_be_no_path_are_one_line():
    for name, said in NAMES.items():
        assert refused(read_bytes, Path(name), LIMIT).endswith(said)


def test_the_file_is_asked_after_it_was_opened(monkeypatch):
    """A file that was looked at may be another thing once it is opened."""
    Path("file").write_text("{}")
    opened = os.open

    def exchange(path, *rest):
        os.unlink(path)
        os.mkfifo(path)
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", exchange)
    assert "but a pipe" in refused(read_bytes, Path("file"), LIMIT)


JSON = {
    "deep": (b"[" * 100_000 + b"]" * 100_000, "recursion"),
    "an integer of ten thousand digits": (b"9" * 10_000, "digits"),
    "NaN": (b'{"a": NaN}', "NaN is not JSON"),
    "no UTF-8": (b'"\xff\xfe"', "can't decode"),
    "nothing": (b"", "Expecting value"),
    "half an object": (b'{"a": 1', "delimiter"),
}


@pytest.mark.goal("X7")
@pytest.mark.parametrize("what", JSON)
def test_json_of_too_much_depth_or_digits_is_one_line(what):
    data, said = JSON[what]
    line = refused(parse_json, data, "a file")
    assert line.startswith("a file: not readable as JSON: ")
    assert said in line


YAML = {
    "what a bomb begins with": (b"a: &a [x, x]\nb: &b [*a, *a]", "holds no anchors or aliases"),
    "an alias of itself": (b"a: &a [*a]", "holds no anchors or aliases"),
    "deep": (b"[" * 20_000, "nested too deeply"),
    "a tag": (b"a: !!python/object/apply:os.system [ls]", "holds no tags"),
    "an integer of ten thousand digits": (b"a: " + b"9" * 10_000, "digits"),
    "a key twice": (b"a: 1\na: 2\n", "duplicate"),
    "two documents": (b"a: 1\n---\nb: 2\n", "is not YAML"),
    "no UTF-8": (b"\xff\xfe", "cannot be read as UTF-8"),
    "a list for a key": (b"? [a, b]\n: 1\n", "is not YAML"),
    "a mapping for a key": (b"? {a: b}\n: 1\n", "is not YAML"),
}


@pytest.mark.goal("X3")
@pytest.mark.parametrize("what", YAML)
def test_yaml_that_expands_or_is_more_than_values_is_one_line(what):
    data, said = YAML[what]
    for values_only in (True, False):
        line = refused(parse_yaml, data, "a file", values_only)
        assert line.startswith("a file: ")
    assert said in line


def test_interpolation_is_a_value_where_a_person_writes_and_no_saved_one():
    data = b"same: {a: 1e-5, b: '${x}'}"
    assert parse_yaml(data, "a file", values_only=False) == {"same": {"a": 1e-5, "b": "${x}"}}
    assert "a file: a saved config holds no ${x}" in refused(parse_yaml, data, "a file")


def test_a_growing_file_is_read_as_far_as_it_was_asked_for(monkeypatch):
    Path("rows").write_bytes(b"12")
    stat = os.fstat

    def grow(descriptor):
        before = stat(descriptor)
        Path("rows").write_bytes(b"12" + b"3" * LIMIT)
        return before

    monkeypatch.setattr(os, "fstat", grow)
    assert len(read_bytes(Path("rows"), 2)) == 2


OPENS = {"open", "read_text", "read_bytes", "load", "loads", "safe_load", "fromfile", "memmap"}
OPENS |= {"safe_open", "loadtxt", "genfromtxt"}
OF_THE_READER = {"read_text", "read_bytes"}  # called by these names alone
# What other modules open, and these modules.
OTHERS = """
the package's files: config/compose explain/listing explain/painting names report/page/__init__
    report/paper/citations
the user's text or machine: data/documents data/pydocs run/machine processes storage/formats streams
text that this process or its child has made: hf/tokenizer_json judge/pairs judge/parties
    model/placement norms/stated comparison/sweep_record
a file to write, or a report to be compared with: storage/files storage/locks run/metrics
    tracking/mirror report/writing
bytes that a manifest has verified: data/encoding data/token_cache run/beginning run/checkpoint
    run/run run/loading storage/manifest
a run, or a module, through load(): analysis/trained/subjects analysis/trained/measuring
    commands/sampling hf/__main__ commands/completion commands/dispatch
any file: storage/reading
"""


def opening_calls(source):
    """The calls by which a module opens or parses a file itself."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        alone = isinstance(called, ast.Name)
        name = called.id if alone else getattr(called, "attr", "")
        if name in OPENS and not (alone and name in OF_THE_READER):
            yield f"{node.lineno}: {name}"


def test_the_search_finds_what_opens_a_file():
    for call in ("open(f)", "f.read_text()", "json.loads(t)", "yaml.safe_load(t)", "os.open(f, 0)"):
        assert [*opening_calls(call)]
    assert [*opening_calls("read_text(f); read_json(f); open_file(f)")] == []


def test_no_other_module_opens_what_anybody_may_have_written():
    known = set(re.sub(r".*: ", "", OTHERS).split())
    found = {
        str(file.relative_to(PACKAGE).with_suffix("")): calls
        for file in sorted(PACKAGE.rglob("*.py"))
        if (calls := [*opening_calls(file.read_text())])
    }
    assert {name: calls for name, calls in found.items() if name not in known} == {}
    assert known - found.keys() == set()


def test_values_are_read_by_their_path():
    Path("a.json").write_text('{"a": [1, 2.5, null, true, "\\u00e9"]}')
    Path("a.yaml").write_text("a: [1, 2.5, null, true, \u00e9]", encoding="utf-8")
    expected = {"a": [1, 2.5, None, True, "\u00e9"]}
    assert read_json(Path("a.json")) == read_yaml(Path("a.yaml")) == expected
