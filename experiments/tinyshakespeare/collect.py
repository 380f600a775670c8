"""python experiments/tinyshakespeare/collect.py [runs/tinyshakespeare]

With a folder of runs: writes results.csv and curves.csv beside this file. Always: draws curves.svg
from them.
"""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "tinyshakespeare"
from matplotlib import pyplot  # noqa: E402

HERE = Path(__file__).parent
RECIPES = {
    "preset gpt2": ("#777777", "--"),
    "default recipe": ("#0b4f8a", "-"),
    "default recipe, muon": ("#b3480b", "-"),
}


def collect(folder: str) -> None:
    from transformer_norms import runs

    found = [(recipe(run["summary"]["choices"]), run) for run in runs(folder)]
    found.sort(key=lambda pair: list(RECIPES).index(pair[0]))
    with open(HERE / "results.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            "recipe val_loss val_bpb steps tokens parameters seed seconds tokens_per_second device "
            "threads commit dirty torch data_fingerprint folder".split()
        )
        for name, run in found:
            summary, last = run["summary"], run["metrics"][-1]
            table.writerow(
                [name, f"{last['val/loss']:.4f}", f"{last['val/bpb']:.4f}", summary["step"]]
                + [summary["tokens"], summary["parameters"], run["config"]["seed"]]
                + [summary["seconds"], summary["tokens_per_second"], summary["device"]]
                + [summary["threads"], summary["commit"], summary["dirty"]]
                + [summary["versions"]["torch"], summary["data"]["fingerprint"][:16]]
                + [run["folder"].name]
            )
    with open(HERE / "curves.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["recipe", "tokens", "val_loss"])
        for name, run in found:
            for row in run["metrics"]:
                if "val/loss" in row:
                    table.writerow([name, row["tokens"], f"{row['val/loss']:.4f}"])


def recipe(choices: dict[str, str]) -> str:
    if choices["preset"] == "gpt2":
        return "preset gpt2"
    return "default recipe, muon" if choices["optimizer"] == "muon" else "default recipe"


def draw() -> None:
    with open(HERE / "curves.csv") as file:
        rows = list(csv.DictReader(file))
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), layout="constrained")
    for name, (colour, style) in RECIPES.items():
        points = [(int(r["tokens"]), float(r["val_loss"])) for r in rows if r["recipe"] == name]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=style, linewidth=1.8)
        axes.annotate(
            f"{name} {points[-1][1]:.2f}", points[-1], xytext=(5, -3),
            textcoords="offset points", color=colour, fontsize=9,
        )  # fmt: skip
    axes.set(xlabel="tokens", ylabel="validation loss, nats per byte")
    axes.set_xlim(0, max(int(row["tokens"]) for row in rows) * 1.36)
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:]:
        collect(sys.argv[1])
    draw()
