"""X5: whatever a folder says, report.html shows it as text, asks for nothing and runs nothing."""

import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from hostile_study import HARMLESS, PAYLOADS, folder_of, make_study
from page_studies import skip_files
from page_walk import MARK, Page, spelled

from transformer_norms.report.charts import panels, profiles
from transformer_norms.report.curves import ALONG
from transformer_norms.report.writing import write_report

UNSEEN = "\0\x1b\x9b\ufeff\u200b\u2028\u2029\u202e\u2066\ufffd"  # what controls, hides, reverses
PAPERS = {"arxiv.org", "doi.org", "openreview.net", "aclanthology.org"}
# Attributes whose value is an address.
ADDRESSES = set(
    "action archive background cite classid codebase data formaction href icon imagesrcset "
    "longdesc lowsrc manifest ping poster profile src srcdoc srcset usemap xlink:href".split()
)
REACHES = re.compile(
    r"\b(fetch|eval|Function|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|Worker"
    r"|innerHTML|outerHTML|insertAdjacentHTML|DOMParser|createContextualFragment"
    r"|setHTMLUnsafe)\b|\bimport\s*\(|\bdocument\s*\.\s*write|https?:|//[a-z0-9-]+\.[a-z]"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of the payloads and of harmless words: report.html"""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        skip_files(patch)
        patch.setattr(profiles, "_PARTS", 6)  # more of them are alike, and take minutes
        patch.setattr(panels, "ALONG", {"tokens": ALONG["tokens"]})
        for words in (PAYLOADS, HARMLESS):
            study = tmp_path_factory.mktemp("studies") / folder_of(words)
            make_study(study, words)
            write_report([study])
            made.append(study / "report.html")
    return made


@pytest.mark.goal("X5")
@pytest.mark.parametrize("javascript", [True, False], ids=["scripts", "no scripts"])
def test_a_page_holds_no_element_and_no_attribute_that_a_folder_brought(javascript, pages, opened):
    hostile, harmless = (Page(opened(page, javascript=javascript)) for page in pages)
    assert hostile.first["elements"] == harmless.first["elements"]
    if javascript:
        hostile.walk()
    found = hostile.found()
    assert set(found["drawn"]) == {*harmless.found()["drawn"]}
    assert not [name for name in found["attributes"] if name.startswith("on")]
    assert not {"iframe", "object", "embed", "base", "frame"} & set(found["tags"])
    assert [url for url in found["addresses"] if not allowed(url)] == []
    assert found["canary"] is None
    assert_text(hostile.texts)
    assert hostile.opened.problems == []


def allowed(url):
    """Nothing is loaded but what the page has in itself, and a link leads to a paper."""
    parts = urlsplit(url)
    paper = parts.scheme == "https" and parts.netloc in PAPERS
    return paper or url.startswith(("#", "data:image/", "url(#"))


def assert_text(texts):
    """Wherever a payload's mark is seen, its markup is text before it. Charts break long names."""
    seen = "\n".join(texts).replace(" ", "")
    for payload in filter(MARK.search, PAYLOADS):
        mark = MARK.search(payload)[0]
        before = spelled(payload).partition(mark)[0].replace(" ", "")[-7:]
        for place in seen.split(mark)[:-1]:
            assert place.endswith(before), (payload, place[-80:])
    names = [(MARK.search(payload) or [payload])[0] for payload in PAYLOADS]
    assert [name for name in names if name not in seen] == []
    assert not set(UNSEEN) & set(seen)


def test_a_very_long_word_does_not_widen_a_page(pages, opened):
    for width in (400, 1200):
        page = opened(pages[0], width=width).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width


class Source(HTMLParser):
    """A page's text as it stands in the file: tags with their attributes, scripts and styles."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.inside = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside.append("")

    def handle_data(self, data):
        if self.cdata_elem:
            self.inside[-1] += data

    def texts(self, tag):
        """The attributes and the text of each script, or of each style."""
        pairs = zip(self.tags, self.inside, strict=True)
        return [(found, text) for (name, found), text in pairs if name == tag]


@pytest.fixture(scope="module")
def source(pages):
    return Source(pages[0].read_text())


@pytest.mark.goal("X5")
def test_one_policy_allows_a_page_nothing_but_itself(source):
    names = [tag for tag, attributes in source.tags]
    metas = [attributes for tag, attributes in source.tags if tag == "meta"]
    equivalents = [meta["http-equiv"].lower() for meta in metas if "http-equiv" in meta]
    assert equivalents == ["content-security-policy"]
    (policy,) = (meta["content"] for meta in metas if "http-equiv" in meta)
    parts = filter(None, map(str.split, policy.split(";")))
    rules = {name: values for name, *values in parts}
    assert rules["default-src"] == ["'none'"]
    assert rules["base-uri"] == rules["form-action"] == ["'none'"]
    assert all(re.fullmatch(r"'sha(256|384|512)-.*'", value) for value in rules["script-src"])
    assert "'unsafe-eval'" not in policy
    for name, values in rules.items():
        wanted = {"'none'", "'unsafe-inline'"} if name.startswith("style-src") else {"'none'"}
        others = {value for value in values if not value.startswith("'sha")} - wanted
        assert others <= ({"data:", "blob:"} if name == "img-src" else set()), name
    place = next(i for i, (_, found) in enumerate(source.tags) if "http-equiv" in found)
    assert not {"script", "style", "link", "body"} & set(names[:place])


@pytest.mark.goal("X5")
def test_a_page_names_no_address_but_those_of_papers(source):
    for tag, attributes in source.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ADDRESSES & set(attributes):
            assert allowed(attributes[name]), (tag, name, attributes[name])
            assert name == "href" or not attributes[name].startswith("https:"), (tag, name)
        assert "url(" not in attributes.get("style", "").replace("url(#", "")
    for _, text in source.texts("style"):
        assert not re.search(r"@import|url\((?!['\"]?(data:|#))|expression\(", text)


@pytest.mark.goal("X5")
def test_a_page_s_own_scripts_reach_for_nothing(source):
    scripts = source.texts("script")
    for _, text in scripts:
        reached = REACHES.search(text)
        assert not reached, reached[0]
