"""The page in a browser: it is silent, it fits, and its controls do what they say."""

import json
from xml.etree import ElementTree

import pytest
from page_studies import LOSSES, RATES, STEPS, depth_study, tuned_study, value
from run_folders import make_study

from transformer_norms.report.writing import write_report
from transformer_norms.training.measures import Place, key_of


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two studies' pages, complete but for the figures beside them."""
    from transformer_norms.report import page, writing

    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "draw_curves", lambda findings, rows: {})
        patch.setattr(writing, "draw_rates", lambda study: {})
        for name, make in (("tuned", tuned_study), ("depth", depth_study)):
            make(folder / name)
            write_report([folder / name])
            patch.setattr(page, "block_drawings", lambda variants: [])  # once is enough
    return {name: folder / name / "report.html" for name in ("tuned", "depth")}


def data(page, chart):
    """The traces that plotly has drawn, as what was given it."""
    told = "id => document.getElementById(id).data.map(t => ({...t, x: [...t.x], y: [...t.y]}))"
    return page.evaluate(told, chart)


# The titles and names of charts that lie in part outside of their chart, where they are cut.
CUT = """() => [...document.querySelectorAll(".js-plotly-plot")].flatMap(chart => {
    const frame = chart.getBoundingClientRect()
    const words = chart.querySelectorAll(".xtitle, .ytitle, .ytick text, .legendtext")
    return [...words].filter(word => {
        const box = word.getBoundingClientRect()
        return box.left < frame.left - 1 || box.right > frame.right + 1 ||
            box.top < frame.top - 1 || box.bottom > frame.bottom + 1
    }).map(word => `${chart.id}: ${word.textContent}`)
})"""


def named(traces):
    """The variants that a chart shows, be it by their seeds or their means."""
    return {trace["name"].partition(", seed")[0] for trace in traces}


@pytest.mark.parametrize("name", ["tuned", "depth"])
@pytest.mark.parametrize(
    "how",
    [{}, {"width": 390, "height": 844}, {"dark": True, "width": 800}, {"javascript": False}],
)
def test_it_is_silent_and_fits(pages, opened, name, how):
    there = opened(pages[name], **how)
    assert there.problems == []
    page = there.page
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= how.get("width", 1200)
    drawn = page.locator(".chart .main-svg").count()
    assert (drawn > 0) == how.get("javascript", True)
    assert page.evaluate(CUT) == []
    assert page.locator(".lead").is_visible()
    assert page.locator("table.results").is_visible()


def test_curves_are_drawn_against_what_is_asked(pages, opened):
    there = opened(pages["tuned"])
    tokens = 40 * 32 * 16
    ends = {"tokens": tokens, "steps": 40, "FLOPs": 6000 * tokens, "seconds": STEPS[-1] / 2}
    for name, end in ends.items():
        there.page.get_by_label(name, exact=True).check()
        drawn = data(there.page, "curves")
        assert max(trace["x"][-1] for trace in drawn) == end
        title = there.page.locator("#curves .xtitle").text_content()
        assert title.startswith(name)
    there.page.get_by_label("tokens", exact=True).check()
    there.page.get_by_label("training", exact=True).check()
    assert there.page.locator("#curves .ytitle").text_content().startswith("training loss")
    there.page.get_by_label("each seed").uncheck()
    assert len(data(there.page, "curves")) == len(LOSSES) + 1  # a mean each, and a cross
    assert there.problems == []


def test_the_legend_takes_variants_out_of_every_chart(pages, opened):
    page = opened(pages["tuned"]).page
    every = {" ".join(names) for names in LOSSES}
    for chart in ("curves", "finals", "rates", "profile"):
        assert named(data(page, chart)) == every
    page.get_by_role("checkbox", name="rmsnorm post").uncheck()
    for chart in ("curves", "finals", "rates", "profile"):
        assert named(data(page, chart)) == every - {"rmsnorm post"}
    page.get_by_role("button", name="hide all").click()
    assert data(page, "curves") == []
    page.get_by_role("button", name="show all").click()
    assert named(data(page, "curves")) == every


def test_it_is_used_by_keyboard(pages, opened):
    page = opened(pages["tuned"]).page
    page.locator("#legend input").first.focus()
    page.keyboard.press("Space")
    assert "rmsnorm pre" not in named(data(page, "curves"))
    page.get_by_label("tokens", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#curves .xtitle").text_content() == "FLOPs"
    page.locator(".lead").evaluate("lead => lead.closest('section').querySelector('a').focus()")
    page.keyboard.press("Enter")
    assert page.url.endswith("#variant-1")


def test_every_seed_is_a_dot_and_a_diverged_one_a_cross(pages, opened):
    page = opened(pages["tuned"]).page
    traces = data(page, "finals")
    dots = sorted(x for t in traces if "customdata" in t for x in t["x"])
    expected = sorted(x for losses in LOSSES.values() for x in losses.values() if x is not None)
    assert dots == expected
    (cross,) = [t for t in traces if t.get("marker", {}).get("symbol") == "x"]
    assert (cross["name"], cross["text"]) == ("layernorm post", ["1 of 3"])


def test_rates_have_a_ring_at_the_best_and_a_cross_where_one_diverged(pages, opened):
    page = opened(pages["tuned"]).page
    traces = data(page, "rates")
    assert page.evaluate("document.getElementById('rates').layout.xaxis.type") == "log"
    dots = sorted(x for t in traces if t["mode"] == "markers" and "customdata" in t for x in t["x"])
    assert dots == sorted([*RATES[:2] * 4, *RATES[2:] * 2])  # at the last rate two diverged
    rings = [t for t in traces if t.get("marker", {}).get("symbol") == "circle-open"]
    assert [ring["x"] for ring in rings] == [[RATES[1]]] * 4
    crosses = {t["name"]: t["x"] for t in traces if t.get("marker", {}).get("symbol") == "x"}
    assert crosses == {"rmsnorm post": [RATES[2]], "layernorm post": [RATES[2]]}


def test_the_rates_of_more_variants_than_lines_differ_are_a_map(opened, tmp_path, monkeypatch):
    from transformer_norms.report import page as written
    from transformer_norms.report import writing

    monkeypatch.setattr(writing, "draw_curves", lambda findings, rows: {})
    monkeypatch.setattr(writing, "draw_rates", lambda study: {})
    monkeypatch.setattr(written, "block_drawings", lambda variants: [])
    norms = "layernorm layernorm_np rmsnorm rmsnorm_np scalenorm l2norm none dyt".split()
    placements = ["pre", "post", "peri", "out"]
    tuned_study(
        tmp_path, losses={(norm, where): {0: 2.3} for norm in norms for where in placements}
    )
    there = opened(write_report([tmp_path])[0])
    page = there.page
    squares, rings, crosses = data(page, "rates")
    every = [(column, row) for row in range(32) for column in range(3)]
    lost = [(2, row) for row in range(32) if placements[row % 4] == "post"]  # at the last rate
    assert [*zip(crosses["x"], crosses["y"], strict=True)] == lost
    assert {*zip(squares["x"], squares["y"], strict=True)} == {*every} - {*lost}
    assert [*zip(rings["x"], rings["y"], strict=True)] == [(1, row) for row in range(32)]
    above = dict(
        zip(zip(squares["x"], squares["y"], strict=True), squares["marker"]["color"], strict=True)
    )
    assert [above[column, 0] for column in range(3)] == pytest.approx([0.25**0.5, 0, 0.15**0.5])
    assert page.locator("#rates .ytick").count() == 32
    assert "row for each variant" in page.locator("#rates-shown").text_content()
    for box in page.locator("#legend input").all()[:2]:
        box.uncheck()
    assert page.evaluate("document.getElementById('rates').layout.xaxis.type") == "log"
    assert "line through the means" in page.locator("#rates-shown").text_content()
    assert there.problems == []


def test_probes_are_shown_by_block_at_a_step_and_over_steps_of_a_variant(pages, opened):
    page = opened(pages["tuned"]).page
    seeds = {" ".join(names): [s for s, x in by.items() if x is not None]
             for names, by in LOSSES.items()}  # fmt: skip

    def mean(name, step, block, number=0):
        return sum(value(s, step, block, number) for s in seeds[name]) / len(seeds[name])

    page.locator("[name=step]").fill(str(len(STEPS) - 1))
    for trace in data(page, "profile"):
        wanted = [0.5, *(mean(trace["name"], STEPS[-1], block) for block in (0, 1))]
        assert trace["y"] == pytest.approx(wanted, rel=1e-3)
    page.locator("[name=step]").fill("0")
    page.locator("[name=measure]").select_option("gradient, norm")
    page.locator("[name=part]").select_option("mlp.up")
    for trace in data(page, "profile"):
        wanted = [mean(trace["name"], STEPS[0], block, 2) for block in (0, 1)]
        assert trace["y"] == pytest.approx(wanted, rel=1e-3)
    page.locator("[name=of]").select_option("layernorm post")
    for block, trace in enumerate(data(page, "history")):
        assert trace["name"] == f"block {block}"
        wanted = [mean("layernorm post", step, block, 2) for step in STEPS]
        assert trace["y"] == pytest.approx(wanted, rel=1e-3)
    assert "before clipping" in page.locator("#meaning").text_content()


def test_a_number_is_an_axis_and_its_charts_have_a_legend(pages, opened):
    page = opened(pages["depth"]).page
    traces = data(page, "axis-0")
    means = [t for t in traces if t["mode"] == "lines"]
    assert {t["name"]: t["x"] for t in means} == {"pre": [2, 4, 16], "sandwich": [2, 4, 16]}
    dots = [t for t in traces if t["mode"] == "markers"]
    assert [t["x"] for t in dots] == [[2, 2, 4, 4, 16, 16]] * 2
    assert page.locator("#axis-0 .legendtext").all_text_contents() == ["pre", "sandwich"]


def test_what_a_reader_chose_outlives_a_reload(pages, opened):
    page = opened(pages["tuned"]).page
    page.get_by_label("steps", exact=True).check()
    page.get_by_role("checkbox", name="rmsnorm post").uncheck()
    page.locator("[name=measure]").select_option("gradient, norm")
    page.locator("[name=part]").select_option("mlp.up")
    page.reload()
    assert page.locator("#curves .xtitle").text_content() == "steps"
    assert "rmsnorm post" not in named(data(page, "curves"))
    assert page.locator("[name=part]").input_value() == "mlp.up"


def test_dark_is_dark_and_paper_is_white(pages, opened):
    there = opened(pages["tuned"], dark=True)
    ground = "getComputedStyle(document.querySelector('#curves .main-svg')).backgroundColor"
    assert there.page.evaluate(ground) == "rgb(20, 23, 28)"
    there.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    there.page.emulate_media(media="print")
    there.page.evaluate("drawAll()")
    assert there.page.evaluate(ground) == "rgb(255, 255, 255)"
    assert not there.page.locator("#legend input").first.is_visible()
    assert there.page.locator("#legend").is_visible()  # what the lines are
    widths = there.page.evaluate(
        "[...document.querySelectorAll('.chart .main-svg')].map(svg => svg.clientWidth)"
    )
    assert max(widths) <= 660
    there.page.emulate_media(media="screen")
    there.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert there.page.evaluate(ground) == "rgb(20, 23, 28)"
    assert there.problems == []


def test_every_link_inside_leads_somewhere(pages, opened):
    page = opened(pages["tuned"]).page
    links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    inside = {link for link in links if link.startswith("#")}
    assert inside > {f"#variant-{place}" for place in range(len(LOSSES))}
    assert all(page.locator(link).count() == 1 for link in inside)
    assert all(link.startswith(("#", "https://doi.org/", "https://arxiv.org/")) for link in links)


def test_every_picture_has_words(pages, opened):
    page = opened(pages["tuned"]).page
    unnamed = page.evaluate(
        "[...document.querySelectorAll('[role=img], .scroll')].filter(e => !e.ariaLabel).length"
    )
    assert unnamed == 0
    unlabelled = page.evaluate(
        "[...document.querySelectorAll('input, select')].filter(e => !e.labels.length).length"
    )
    assert unlabelled == 0
    assert json.loads(page.locator("#study").text_content())["names"]


@pytest.mark.parametrize(
    ("chart", "layer"),
    [("curves", ".js-line"), ("finals", ".point"), ("rates", ".point"), ("profile", ".point")],
)
def test_what_is_pointed_at_says_which_variant_it_is(pages, opened, chart, layer):
    page = opened(pages["tuned"]).page
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    box = page.locator(f"#{chart} .scatterlayer {layer}").first.bounding_box()
    share = 0.5 if layer == ".point" else 1.0  # a dot's middle, and where a line ends
    page.mouse.move(box["x"] + share * box["width"], box["y"] + share * box["height"])
    page.wait_for_selector(f"#{chart} .hovertext", timeout=60_000)
    text = page.locator(f"#{chart} .hovertext").first.text_content()
    assert any(" ".join(names) in text for names in LOSSES), text


def test_each_chart_is_saved_as_an_svg_without_a_request(pages, opened, tmp_path):
    there = opened(pages["tuned"])
    names = {
        "curves": "loss-by-tokens",
        "finals": "final-loss",
        "rates": "tuning",
        "profile": "probe-stream-rms",
        "history": "probe-stream-rms-of-rmsnorm-pre",
    }
    for chart, name in names.items():
        button = there.page.locator(f"#{chart} + button")
        with there.page.expect_download() as download:
            button.click()
        assert download.value.suggested_filename == f"tuned-{name}.svg"
        download.value.save_as(tmp_path / name)
        svg = ElementTree.parse(tmp_path / name).getroot()
        shown = there.page.locator(f"#{chart}").bounding_box()
        assert float(svg.get("width")) == pytest.approx(shown["width"], abs=1)
        words = {text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")}
        assert {"rmsnorm pre", "layernorm post"} <= words or chart == "history"
    assert there.page.locator(".chart").count() == there.page.locator(".download").count()
    assert there.problems == []
    there.page.emulate_media(media="print")
    assert not button.is_visible()


def test_nothing_on_the_page_offers_to_send_it_anywhere(pages, opened):
    page = opened(pages["tuned"]).page
    assert page.locator(".modebar-btn").count() == 0


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Of a study in which one variant diverged early, in every seed, and one has two streams."""
    from transformer_norms.report import page, writing

    study = tmp_path_factory.mktemp("uneven")
    seeds = range(6)
    make_study(study, {
        "pre": {seed: 2.3 + seed / 100 for seed in seeds},
        "post": dict.fromkeys(seeds),
        "residual_dual": {seed: 2.4 + seed / 100 for seed in seeds},
    })  # fmt: skip
    steps = [1, *range(20, 601, 20)]
    for run in study.glob("*-s*"):
        lost, parts = run.name.startswith("post"), ["x", "r"] if "dual" in run.name else [""]
        rows = [
            {"step": step, "tokens": 512 * step, "val/loss": 3 - step / 1000}
            | {key_of(Place("stream_rms", part, block)): step for part in parts for block in (0, 1)}
            | {key_of(Place("stream_rms", "embedding", None)): 0.5}
            for step in steps
            if not (lost and step > 140)
        ]
        if lost:
            rows[-1]["val/loss"] = 40.0
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "draw_curves", lambda findings, rows: {})
        patch.setattr(page, "block_drawings", lambda variants: [])
        return write_report([study])[0]


def test_crosses_of_runs_that_diverged_are_in_view_and_in_their_own_row(uneven, opened):
    page = opened(uneven).page
    low, high = page.evaluate("document.getElementById('curves').layout.yaxis.range")
    (crosses,) = [t for t in data(page, "curves") if t.get("marker", {}).get("symbol") == "x"]
    assert crosses["text"] == ["6"]  # they ended at one step
    assert all(low <= y <= high for y in crosses["y"])
    shown = "[...document.querySelectorAll('#curves .point')].map(p => getComputedStyle(p).display)"
    assert "none" not in page.evaluate(shown)
    (ended,) = [t for t in data(page, "finals") if t.get("marker", {}).get("symbol") == "x"]
    assert all(0.5 < y < 1.5 for y in ended["y"])
    assert ended["text"] == ["6 of 6"]


def test_what_is_shown_by_block_is_of_the_step_that_is_named(uneven, opened):
    page = opened(uneven).page
    last = int(page.locator("[name=step]").get_attribute("max"))
    seen = set()
    for at in range(last + 1):
        page.locator("[name=step]").fill(str(at))
        step = int(page.locator("[name=shown]").text_content())
        for trace in data(page, "profile"):
            assert {y for y in trace["y"][1:] if y is not None} <= {step}
            seen.add((trace["name"], step > 140))
    assert seen >= {("pre", False), ("pre", True), ("post", False)}
    assert ("post", True) not in seen


def test_what_is_inside_the_blocks_is_shown_first_and_called_so(uneven, pages, opened):
    words = "[...document.querySelectorAll('[name=part] option')].map(o => o.textContent)"
    page = opened(uneven).page
    assert page.evaluate(words) == ["each block", "r", "x"]
    page = opened(pages["tuned"]).page
    page.locator("[name=measure]").select_option("gradient, norm")
    assert page.evaluate(words) == ["outside the blocks", "attention.query", "mlp.up"]
    assert page.locator("[name=part]").input_value() == "attention.query"
