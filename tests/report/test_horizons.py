"""Prices and equal budgets in the report of a study with several horizons."""

from pathlib import Path

import pytest
from reports import findings_of, study_of, text
from run_folders import BATCH, CONTEXT, edit, edit_each, make_sweep

from transformer_norms.comparison.price import CURVE_ERROR
from transformer_norms.errors import ConfigError
from transformer_norms.report.answer import answer
from transformer_norms.report.table import summary_lines

STEPS = (40, 160, 640)
NOISE = (0.001, -0.003, 0.002)
NAME = "steps={} sandwich"


def loss(placement, tokens, seed):
    """A power law of exponent 0.5; sandwich needs a tenth fewer tokens than pre."""
    sandwich = placement == "sandwich"
    tokens = tokens / 0.9 if sandwich else tokens
    return 1.0 + 200 * tokens**-0.5 + NOISE[seed] * (1 if sandwich else -1)


@pytest.fixture(params=[STEPS])
def study(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    make_sweep("study", [
        ({"trainer.steps": steps, "placement": placement}, seed,
         loss(placement, steps * BATCH * CONTEXT, seed))
        for steps in request.param for placement in ("pre", "sandwich") for seed in range(3)
    ], axes=["trainer.steps", "placement"])  # fmt: skip
    return Path("study")


def costs(study, placement, **factors):
    edit_each(study.glob(f"{placement}-*"), lambda s: {k: s[k] * f for k, f in factors.items()})


def test_the_price_of_a_variant_is_in_its_sentence_in_tables_and_in_latex(study):
    lines = text()
    price = findings_of(study).prices[NAME.format(640)]
    assert price.saved == pytest.approx(0.1, abs=1e-4)
    shown = f"10 % ({100 * price.low:.0f} to {100 * price.high:.0f})"
    claim = f"steps=640 sandwich reaches the loss of steps=640 pre with {shown}"
    assert claim.replace(" % (", " % fewer tokens (") in lines
    assert f" {shown} " in lines
    assert "steps=40 sandwich reaches" not in lines
    assert "- tokens saved: " in lines
    assert "tokens saved" in Path("study/table.tex").read_text()
    assert shown in "\n".join(summary_lines(findings_of(study)))
    assert shown in Path("study/report.html").read_text()


@pytest.mark.parametrize("study", [STEPS[:1], STEPS[:2], STEPS], indirect=True)
def test_a_study_of_too_few_horizons_says_why_it_has_no_price(study):
    found = findings_of(study)
    horizons = len({variant.horizon[0] for variant in found.study.variants})
    for lines in answer(found).notes, summary_lines(found):
        assert ("three horizons" in " ".join(lines)) == (horizons == 2)


@pytest.mark.parametrize(("at", "field"), [("flops", "FLOPs"), ("seconds", "seconds")])
def test_at_an_equal_budget_the_dearer_variant_is_read_at_what_the_budget_buys(study, at, field):
    for seed in range(3):  # the load differs from seed to seed by three times
        edit_each(
            study.glob(f"*-s{seed}-*"), lambda s, n=seed: {"seconds": s["steps"] / 16 * (1 + n)}
        )
    costs(study, "sandwich", flops=1.25, seconds=1.25)
    found = findings_of(study, at=at)
    for steps in STEPS[1:]:
        tokens = steps * BATCH * CONTEXT
        # Read at 0.8 of its tokens it lies 1 / 0.9 of these 0.8 along the law of pre.
        true = 200 * ((tokens * 0.8 / 0.9) ** -0.5 - tokens**-0.5)
        assert found.comparisons[NAME.format(steps)].difference == pytest.approx(true, abs=1e-6)
    assert NAME.format(40) not in found.comparisons
    lines = text(at=at)
    assert f"at equal {field}, steps=640 sandwich is worse than steps=640 pre by" in lines
    assert "; steps=640 sandwich is read at 80.0 % of its tokens" in lines
    assert (
        f"steps=40 sandwich - steps=40 pre has no value at equal {field}: steps=40 sandwich would "
        f"have {0.8 * 40 * BATCH * CONTEXT:,.0f} tokens, and its shortest horizon has "
        f"{40 * BATCH * CONTEXT:,}"
    ) in lines
    assert "tokens saved" not in lines
    assert " at equal " in answer(found).lead
    for file in ("table.md", "table.tex", "report.html"):
        assert f"difference at equal {field}" in (study / file).read_text()


def test_the_quartiles_of_the_ratio_of_seconds_widen_the_bounds_of_the_comparison(study):
    """Each horizon has its ratio, and the pairs of all horizons give one ratio."""
    ratios = dict(zip(STEPS, (1.2, 1.25, 1.35), strict=True))
    edit_each(study.glob("pre-*"), lambda s: {"seconds": s["steps"]})
    edit_each(study.glob("sandwich-*"), lambda s: {"seconds": s["steps"] * ratios[s["steps"]]})

    def mean(share):
        return 200 * (share * 640 * BATCH * CONTEXT / 0.9) ** -0.5

    first, read, last = mean(1 / 4), mean(1 / 1.25), mean(1)
    part = (first - read) / (first - last)
    slack = CURVE_ERROR * (first - last) * min(part, 1 - part)
    farther = max(mean(1 / 1.35) - read, read - mean(1 / 1.2))
    found = findings_of(study, at="seconds").comparisons[NAME.format(640)]
    assert found.slack == pytest.approx((slack + farther, 0))


def test_seconds_of_two_machines_and_costs_without_a_record_are_refused(study):
    with pytest.raises(ConfigError, match="^at=flop: did you mean 'flops'"):
        study_of(study, at="flop")
    first = next(study.glob("pre-*"))
    edit(first, threads=2, flops=None)
    found = findings_of(study, at="seconds")
    assert not found.comparisons
    shown = " ".join(summary_lines(found))
    assert "no value at equal seconds: the seconds of steps=40 " in shown
    assert "are not comparable (threads)" in shown
    with pytest.raises(
        ConfigError, match=f"^--at flops: .*{first.name} has no record of its flops"
    ):
        findings_of(study, at="flops")


def test_at_equal_tokens_variants_may_differ_in_their_batches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_sweep("study", [
        ({"trainer.steps": steps, "trainer.batch_size": size}, seed, 1 + 9 / steps + NOISE[seed])
        for steps in STEPS for size in (BATCH, 2 * BATCH) for seed in range(3)
    ], baseline={"trainer.batch_size": BATCH})  # fmt: skip
    for run in Path("study").glob("*-s*"):
        size = 1 + ("batch_size: 32" in (run / "config.yaml").read_text())
        edit_each([run], lambda s, n=size: {"tokens": s["tokens"] * n, "batch_chain": f"{n}"})
    with pytest.raises(ConfigError, match=r"^trainer.batch_size \(horizon\).*, or --at tokens$"):
        findings_of("study")
    shares = findings_of("study", at="tokens").budgets["steps=640 batch_size=32"].shares
    assert shares == {"steps=640 batch_size=32": 0.5, "steps=640 batch_size=16": 1.0}
