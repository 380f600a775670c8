"""Studies that ask the same are joined into one estimate, by numpy and scipy alone."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from own_folder import own_folder  # noqa: F401
from run_folders import PRE, make_study, tree
from scipy import stats

from transformer_norms.errors import ConfigError
from transformer_norms.report.__main__ import main
from transformer_norms.report.joined_report import write_joined

NOISE = np.array([0.004, -0.006, 0.001, -0.002, 0.003])


def study(name, difference, first, **changed):
    """A study of five pairs with fresh seeds; their differences scatter as NOISE does."""
    seeds = range(first, first + len(NOISE))
    pre = {seed: 2.3 + 0.01 * n for n, seed in enumerate(seeds)}
    post = {seed: pre[seed] + difference + x for seed, x in zip(seeds, NOISE, strict=True)}
    return make_study(f"runs/{name}", {"pre": pre, "post": post}, **changed).parent


def joined(*found):
    """(theta, half width of 95 %, tau, p of Cochran's Q) of means with one variance."""
    y, v = np.array(found) + NOISE.mean(), NOISE.var(ddof=1) / len(NOISE)
    variance = max(y.var(ddof=1), v)
    half = stats.t.ppf(0.975, len(y) - 1) * np.sqrt(variance / len(y))
    p = stats.chi2.sf(np.sum((y - y.mean()) ** 2) / v, len(y) - 1)
    return y.mean(), half, np.sqrt(variance - v), p


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ((0.030, 0.031, 0.032), "worse"),  # they scatter less than their seeds do
        ((0.030, 0.090, 0.055), "not told apart"),
        ((-0.05, -0.0505, -0.051, -0.052), "better"),
        ((0.001, -0.001, 0.002, 0.0), "equivalent"),
    ],
)
def test_studies_of_one_contrast_have_one_estimate_and_a_scatter(found, word, capsys):
    folders = [study(f"s{n}", d, 10 * n) for n, d in enumerate(found)]
    assert main([*map(str, folders), "--join"]) == 0
    theta, half, tau, p = joined(*found)
    assert (tau > 0) == (word == "not told apart")
    out, err = capsys.readouterr()
    path = Path(json.loads(out)["report"])
    assert path.parent == Path("runs", "-".join(["report", *(f.name for f in folders)]))
    text = path.read_text()
    cells = [cell.strip() for cell in text.split("| joined ")[1].split("\n")[0].split("|")]
    interval = f"{theta - half:+.4f} to {theta + half:+.4f}"
    assert cells[3:6] == [f"{theta:+.4f}", interval, interval]  # one comparison, and no tuning
    assert cells[7] == word
    assert f"deviation between studies {tau:.4f} nats, p of Cochran's Q {p:.2g}" in text
    assert "deviation between studies" in " ".join(err.split())
    assert path.with_name("joined.svg").read_text().count("<svg") == 1


def test_what_every_study_declares_is_judged_together_and_a_typed_contrast_is_described():
    places = ("pre", "post", "peri")
    folders = []
    for n in range(3):
        seeds = range(10 * n, 10 * n + 5)
        losses = {p: {s: 2.3 + 0.02 * places.index(p) + NOISE[s % 5] * (places.index(p) + 1)
                      for s in seeds} for p in places}  # fmt: skip
        folders.append(make_study(f"runs/s{n}", losses).parent)
    path, sentences = write_joined(folders)
    assert [one.split(" ")[0] for one in sentences] == ["post", "peri"]
    assert "it holds for 2 comparisons" in path.read_text()
    _, typed = write_joined(folders, contrasts=["peri - post", "post - pre"])
    assert [one.split(" by ")[0] for one in typed[1:]] == ["post is worse than pre"]
    assert ["not tested" in one for one in typed] == [True, False]
    assert typed[1] == sentences[0]  # the same bounds, typed or not


def test_pairs_of_one_variant_with_two_baselines_are_not_one_comparison():
    study("one", 0.03, 0)
    losses = {"sandwich": PRE, "post": {seed: loss + 0.1 for seed, loss in PRE.items()}}
    make_study("runs/two", losses, baseline={"placement": "sandwich"})
    with pytest.raises(ConfigError, match="no comparison is in every study; one has post - pre; "):
        write_joined([Path("runs/one"), Path("runs/two")])


def test_seeds_that_two_studies_share_are_named_and_each_has_its_dot():
    folders = [study("one", 0.03, 0), study("two", 0.031, 0, typed=["model.depth=3"])]
    path, _ = write_joined(folders)
    assert "studies have seeds in common" in path.read_text()
    drawn = path.with_name("joined.svg").read_text().splitlines()
    assert sum("<use" in line and "opacity: 0.7" in line for line in drawn) == 5 + 5 + 10
    other, _ = write_joined([study("three", 0.03, 20), study("four", 0.031, 40)])
    assert "in common" not in other.read_text()


def test_studies_that_must_not_be_joined_are_refused_in_one_line(capsys):
    one, two = study("one", 0.03, 0), study("two", 0.03, 10)
    shutil.copytree(one, "runs/copy")
    wide, edge = study("wide", 0.03, 20, margin=0.1), study("few", 0.03, 30)
    for folder in sorted(edge.glob("*-s3[0-2]-*")):
        shutil.rmtree(folder)
    before = tree()
    refused = {
        (one,): "--join: name the FOLDERs of two studies or more, each once",
        (one, one): "--join: name the FOLDERs of two studies or more, each once",
        (one, Path("runs/copy")): "--join: one and copy share 10 runs, such as ",
        (one, wide): "--join: the margin is 0.02 in one and 0.1 in wide; type --margin NATS",
        (one, edge): "--join: post - pre has no value in few: not decided yet",
        (one, two, "--contrast", "peri - pre"): "--contrast peri - pre: ",
        (one, two, "--figures", "x"): "--figures: is not for --join, which writes joined.svg",
    }
    for typed, said in refused.items():
        assert main([*map(str, typed), "--join"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.strip().count("\n")) == ("", 0)
        assert err.strip().removeprefix("error: ").startswith(said), err
    assert tree() == before
    assert main([str(one), str(wide), "--join", "--margin", "0.05"]) == 0
