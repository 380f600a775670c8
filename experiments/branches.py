"""What two studies of the same horizons found: one with a schedule that ends with each run, the
other one with branches."""

from tokens_needed import needed_text

from transformer_norms.comparison.sentences import difference_and_interval, price_text
from transformer_norms.report.findings import Findings
from transformer_norms.text_tables import markdown_table


def beside_text(here: Findings, other: Findings) -> str:
    """A row for each variant: its mean loss, its difference from pre and the tokens that it saves,
    in both studies."""
    columns = ("loss", "difference", "tokens saved")
    rows = [["variant", *(f"{one}, {where}" for one in columns for where in ("horizon", "here"))]]
    for variant in here.study.variants:
        cells = [_cells(found, variant.name) for found in (other, here)]
        rows.append([variant.name, *(cell for pair in zip(*cells, strict=True) for cell in pair)])
    table = markdown_table(rows)
    return (
        f"Both studies, in nats, with 95 % intervals of single comparisons:\n\n{table}\n\n"
        f"{needed_text(here)}"
    )


def _cells(found: Findings, name: str) -> tuple[str, str, str]:
    """The mean loss, the difference from the baseline, and the price of a variant."""
    outcomes, c = found.outcomes[name], found.comparisons.get(name)
    value, interval = difference_and_interval(c) if c else ("", "")
    difference = f"{value} ({interval.removeprefix('95 % interval ')})" if value else ""
    mean = "failed" if outcomes.mean is None else f"{outcomes.mean:.4f}"
    price = found.prices.get(name)
    return mean, difference, price_text(price) if price else ""
