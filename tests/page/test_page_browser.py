"""The page in a browser: it is silent, it fits, and its controls do what they say."""

import re
from xml.etree import ElementTree

import pytest
from page_studies import LOSSES, depth_study, skip_files, tuned_study

from transformer_norms.report.writing import write_report

NAMES = [" ".join(names) for names in LOSSES]
CHARTS = ("differences", "final-loss", "loss-by-tokens", "tuning", "probe-stream-rms")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two studies' pages, complete but for the figures beside them."""
    from transformer_norms.report import page

    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        skip_files(patch)
        for name, make in (("tuned", tuned_study), ("depth", depth_study)):
            make(folder / name)
            write_report([folder / name])
            patch.setattr(page, "block_drawings", lambda variants: [])  # once is enough
    return {name: folder / name / "report.html" for name in ("tuned", "depth")}


def shown(page, chart):
    """The variants that a chart shows a part of."""
    told = """chart => [...document.querySelectorAll(`#${chart} [class^=variant]`)]
        .filter(part => getComputedStyle(part).display != "none")
        .map(part => part.getAttribute("class").match(/\\d+/)[0])"""
    return {NAMES[int(place)] for place in page.evaluate(told, chart)}


# The words of charts that lie in part outside of their chart, where they are cut.
CUT = """() => [...document.querySelectorAll(".chart")].flatMap(chart => {
    const frame = chart.getBoundingClientRect()
    return [...chart.querySelectorAll("text")].filter(word => {
        const box = word.getBoundingClientRect()
        return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 3
    }).map(word => `${chart.id}: ${word.textContent}`)
})"""


@pytest.mark.parametrize("name", ["tuned", "depth"])
@pytest.mark.parametrize(
    "how", [{}, {"width": 390, "height": 844}, {"dark": True, "width": 800}, {"javascript": False}]
)
def test_it_is_silent_and_fits(pages, opened, name, how):
    there = opened(pages[name], **how)
    assert there.problems == []
    page = there.page
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= how.get("width", 1200)
    assert page.locator(".chart svg").first.is_visible()
    assert page.evaluate(CUT) == []
    assert page.locator(".lead").is_visible()
    assert page.locator("table.results").is_visible()


@pytest.mark.parametrize("javascript", [True, False], ids=["scripts", "no scripts"])
def test_the_curve_that_is_asked_for_is_shown_and_no_other(pages, opened, javascript):
    page = opened(pages["tuned"], javascript=javascript).page
    for along in ("tokens", "FLOPs", "seconds of training"):
        page.get_by_label(f"validation loss by {along}", exact=True).check()
        name = f"loss-by-{along.partition(' ')[0].lower()}"
        views = page.locator(".view").all()
        assert [view.get_attribute("id") for view in views if view.is_visible()] == [name]
        words = page.locator(f"#{name} text").all_text_contents()
        assert {along, "validation loss, nats per token"} < {*words}
    seed = page.locator(f"#{name} .seed").first
    assert seed.is_visible()
    page.get_by_label("each seed").uncheck()
    assert not seed.is_visible()


@pytest.mark.parametrize("javascript", [True, False], ids=["scripts", "no scripts"])
def test_the_legend_takes_variants_out_of_every_chart(pages, opened, javascript):
    page = opened(pages["tuned"], javascript=javascript).page
    for chart in CHARTS:
        every = {*NAMES[1::2]} if chart == "differences" else {*NAMES}
        page.get_by_role("button", name="show all").click()
        assert shown(page, chart) == every
        page.get_by_role("checkbox", name="rmsnorm post").uncheck()
        assert shown(page, chart) == every - {"rmsnorm post"}
    none = page.get_by_role("button", name="hide all")
    assert none.is_visible() == javascript
    if javascript:
        none.click()
        assert not any(shown(page, chart) for chart in CHARTS)


def test_it_is_used_by_keyboard_and_what_a_reader_chose_outlives_a_reload(pages, opened):
    page = opened(pages["tuned"]).page
    page.locator("#legend input").first.focus()
    page.keyboard.press("Space")
    assert "rmsnorm pre" not in shown(page, "loss-by-tokens")
    page.get_by_label("validation loss by tokens", exact=True).focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#loss-by-flops").is_visible()
    page.reload()
    assert page.locator("#loss-by-flops").is_visible()
    assert "rmsnorm pre" not in shown(page, "loss-by-flops")
    page.locator(".lead").evaluate("lead => lead.closest('section').querySelector('a').focus()")
    page.keyboard.press("Enter")
    assert page.url.endswith("#variant-1")


def test_dark_is_dark_and_paper_is_white(pages, opened):
    there = opened(pages["tuned"], dark=True)
    ground = """name => getComputedStyle(document.querySelector(
        `#loss-by-tokens ${name}`))"""
    drawn = [f"({ground})('svg > g path').fill", f"({ground})('.variant-0 path').stroke"]
    assert [*map(there.page.evaluate, drawn)] == ["rgb(20, 23, 28)", "rgb(255, 255, 255)"]
    there.page.emulate_media(media="print")
    assert [*map(there.page.evaluate, drawn)] == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    assert not there.page.locator("#legend input").first.is_visible()
    assert there.page.locator("#legend").is_visible()  # what the lines are
    assert there.problems == []


def test_every_link_inside_leads_somewhere_and_every_picture_has_words(pages, opened):
    page = opened(pages["tuned"]).page
    links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    inside = {link for link in links if link.startswith("#")}
    assert inside > {f"#variant-{place}" for place in range(len(LOSSES))}
    assert all(page.locator(link).count() == 1 for link in inside)
    assert all(link.startswith(("#", "https://doi.org/", "https://arxiv.org/")) for link in links)
    for every, named in (("[role=img], .scroll", "ariaLabel"), ("input, select", "labels.length")):
        without = f"[...document.querySelectorAll('{every}')].filter(e => !e.{named}).length"
        assert page.evaluate(without) == 0, every


POINTED = [
    ("loss-by-tokens", ".variant-1:not(.seed) path", "rmsnorm post, mean"),
    ("loss-by-tokens", ".variant-2.seed path", r"layernorm pre, seed 0: \S+-s0-\S+"),
    ("final-loss", ".variant-0 use", r"rmsnorm pre, seed 0: pre-\S+, 2.3000"),
    ("differences", ".variant-1 use", "rmsnorm post, seed 0: -0.1200 nats"),
    ("tuning", ".variant-0 use", "rmsnorm pre, 0.005, seed 100: 2.6000"),
    ("probe-stream-rms", ".variant-3 use", "layernorm post, embedding: 0.5"),
    ("probe-stream-rms-by-step", ".variant-3 path", "layernorm post, embedding"),
]
WORDS = """([chart, part]) => {
    const drawn = [...document.querySelectorAll(`#${chart} ${part}`)].at(-1)
    const box = drawn.getBoundingClientRect(), far = (drawn.getTotalLength?.() ?? 0) / 2
    const [x, y] = drawn.localName == "use" ? [box.x + box.width / 2, box.y + box.height / 2] :
        (at => [at.x, at.y])(drawn.getPointAtLength(far).matrixTransform(drawn.getScreenCTM()))
    return [x, y, drawn.closest("[data-words]").dataset.words]
}"""


def test_what_is_pointed_at_says_which_run_it_is(pages, opened):
    """Without a script the browser shows the same words, a moment later."""
    plain = opened(pages["tuned"], javascript=False).page
    page = opened(pages["tuned"]).page
    for chart, part, said in POINTED:
        titles = plain.locator(f"#{chart} {part.split()[0]} title").all_text_contents()
        assert any(re.fullmatch(said, title) for title in titles), said
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        x, y, own = page.evaluate(WORDS, [chart, part])
        page.mouse.move(x, y)
        assert page.locator("#pointed").text_content(), said
        assert own.startswith(said.partition(",")[0])


def test_each_chart_is_saved_as_it_is_shown_without_a_request(pages, opened, tmp_path):
    there = opened(pages["tuned"])
    there.page.get_by_role("checkbox", name="layernorm post").uncheck()
    for chart in CHARTS:
        button = there.page.locator(f"#{chart} button")
        with there.page.expect_download() as download:
            button.click()
        assert download.value.suggested_filename == f"tuned-{chart}.svg"
        download.value.save_as(tmp_path / chart)
        svg = ElementTree.parse(tmp_path / chart).getroot()
        words = {text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")}
        assert "rmsnorm post" in words
        assert "layernorm post" not in words
        assert "var(" not in (tmp_path / chart).read_text()
    assert there.page.locator(".chart").count() == there.page.locator(".download").count()
    assert there.problems == []
    there.page.emulate_media(media="print")
    assert not button.is_visible()
