"""configs/sources.bib has the publication of every source, read here without the package."""

import re
from pathlib import Path

import pytest
import yaml

from transformer_norms.config.compose import compose
from transformer_norms.kinds import plain
from transformer_norms.names import options
from transformer_norms.report.paper.citations import bibliography, choices_of, entries_of

CONFIGS = Path(__file__).parents[2] / "configs"
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
NO_PUBLICATION = {"no normalization"}


def parsed(text):
    """{key: fields} of BibTeX with one field a line."""
    entries = {}
    for key, body in re.findall(r"^@\w+\{([^,\s]+),\n((?:  .*\n)*)\}$", text, re.MULTILINE):
        fields = re.findall(r"^  (\w+) = \{(.*)\},$", body, re.MULTILINE)
        assert len(fields) == body.count("\n"), key
        assert all(value.count("{") == value.count("}") for _, value in fields), key
        assert key not in entries
        entries[key] = dict(fields)
    assert len(entries) == len(re.findall("^@", text, re.MULTILINE))
    return entries


ENTRIES = parsed((CONFIGS / "sources.bib").read_text())


def sources():
    for file in sorted(CONFIGS.glob("*/**/*.yaml")):
        content = yaml.safe_load(file.read_text()) or {}
        about = content.get("about", content.get("recipe", content))
        if isinstance(about, dict) and (source := about.get("source")):
            yield f"{file.parent.name}={file.stem}", source


def test_every_entry_has_what_a_reader_needs_to_find_it():
    for key, fields in ENTRIES.items():
        assert {"author", "title", "year"} <= fields.keys(), key
        assert {"journal", "institution", "booktitle", "howpublished", "note"} & fields.keys(), key
        assert re.fullmatch(r"(19|20)\d\d", fields["year"]), key
        number = ARXIV.search(fields.get("journal", ""))
        # An identifier begins with the year of the first version, which may come a day later.
        assert number is None or 0 <= int("20" + number[1][:2]) - int(fields["year"]) <= 1, key
        assert (fields["author"] + fields["title"]).isascii(), key
    numbers = [n for fields in ENTRIES.values() for n in ARXIV.findall(fields.get("journal", ""))]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(("option", "source"), list(sources()))
def test_a_source_leads_to_each_of_its_publications(option, source):
    keys = [*entries_of(option, source)]
    assert bool(keys) == (source not in NO_PUBLICATION)
    assert set(keys) <= ENTRIES.keys()
    said = {n for key in keys for n in ARXIV.findall(ENTRIES[key].get("journal", ""))}
    assert set(ARXIV.findall(source)) <= said
    first = re.match(
        r"(?:[^,;:(]*[,:] )*?([A-Z][\w-]+)(?: & ([A-Z]\w+))? (?:et al\. )?((?:19|20)\d\d)", source
    )
    if first and first[1] not in ("GPT-J", "Team"):  # the name and the year are those of an entry
        authors = " ".join(ENTRIES[key]["author"] for key in keys)
        assert first[1] in authors
        assert first[3] in {ENTRIES[key]["year"] for key in keys}


def test_every_phrase_is_an_option_or_stands_in_a_source():
    every = " ".join(source for _, source in sources())
    for fields in ENTRIES.values():
        for phrase in filter(None, fields.get("named", "").split("; ")):
            axis, _, name = phrase.partition("=")
            assert name in options(axis) if name else phrase in every, phrase


def test_a_run_cites_its_norm_placement_init_preset_and_what_has_no_source_of_its_own():
    config = plain(compose(["preset=gemma2", "init=mup", "optimizer=muon", "model=nano"]))
    keys = parsed(bibliography(choices_of(config))).keys()
    wanted = "mesnard2024gemma gemma2024gemma2 yang2022mup nguyen2019tears su2021rope "
    assert keys >= {*f"{wanted} jordan2024muon liu2025moonlight shazeer2020glu".split()}
    assert "xiong2020layernorm" not in keys


def test_a_source_without_an_entry_becomes_a_note_and_no_sentence_is_cited():
    own = {"norm=mine": "Doe et al. 2031 {draft} @home, 50 %", "norm=x": "no normalization"}
    assert parsed(bibliography(own)) == {
        "norm-mine": {"title": "norm=mine", "note": r"Doe et al. 2031 (draft) (at)home, 50 \%"}
    }
    number = {"placement=y": "Zed 2026, arXiv:2699.00001v2"}
    assert "arXiv:2699.00001v2" in parsed(bibliography(number))["placement-y"]["note"]
    assert [*entries_of("norm=z", "arXiv:1910.07467v3")] == ["zhang2019rmsnorm"]
    assert [*entries_of("norm=z", "arXiv:1910.074671")] == ["norm-z"]
