"""Studies whose every free text may be anything: in each place where a folder or a record takes
one, stands a word of the caller's."""

import json
import re
from pathlib import Path

import yaml
from run_folders import BATCH, CONTEXT, DATA, config_of, edit, make_record, make_run, planned, tuned

CANARY = "window.canary=true"
LISTED = yaml.safe_load(Path(__file__).with_name("hostile_texts.yaml").read_text())
TEXTS = [text.replace("CANARY", CANARY).replace("W...", "W" * 3000) for text in LISTED]
PAYLOADS = [text.replace("MARK", f"mark{place:02}") for place, text in enumerate(TEXTS)]
# Alike in length and in what parts keys and paths, so that what one page cuts the other cuts.
HARMLESS = [re.sub(r"(mark\d\d)|[^./]", lambda m: m[1] or "w", text) for text in PAYLOADS]


SEVERAL = 5  # variants with two seeds, and with configs that this version can build
HALF = 21


def make_study(study, words):
    """Variants whose values are words, which also stand in all that is said of their runs. The
    first is the baseline, and two are tuned."""
    runs, chosen, tune = [], [], {}
    alone = len(words) - 2 * HALF  # names that mean something to a script are a variant's whole one
    for place, word in enumerate([*words[:HALF], *words[-alone:]]):
        other = words[place + HALF]
        values = {"placement": word}
        values |= {f"norm.{words[5]}": other, words[2]: 1} if place < HALF else {}
        for seed in (0, 1)[: 2 if place < SEVERAL else 1]:
            config = config_of((), seed, optimizer__lr=1e-3 * (1 + place))
            loss = 2.3 + 0.01 * (place % 7 + seed)
            run = make_run(study, config, loss, **_summary(word, words))
            runs.append(planned(config, values))
            _rewrite(run, config, [word, other], loss, valid=place < SEVERAL)
        if place < 2:
            trials = _trials(study, values, word, words)
            runs += trials
            chosen.append(tuned(values, trials[1].tuned, *trials[1].tuned, words[5]))
            tune = {key: [trial.tuned[key] for trial in trials] for key in trials[0].tuned}
    missing = planned(config_of((), 7), {"placement": words[-1]})
    other = make_run(study, config_of((), 8), 2.4, **_summary(words[3], words))
    other.rename(other.parent / words[4].replace("/", "|"))  # as a file system takes it
    facts = {"question": " ".join(words), "axes": list(runs[0].variant), "tuned": chosen}
    facts |= {"tune": tune, "tune_seeds": [100], "baseline": runs[0].variant}
    make_record(study, [*runs, missing], **facts)


def _trials(study, values, word, words):
    """At three rates of a made-up key; at the last, the run diverged."""
    runs = []
    for step, loss in enumerate((2.5, 2.3, None)):
        tried = {f"architecture.{words[33]}": 10.0**-step, f"architecture.{words[2]}": words[step]}
        config = config_of((), 100)
        config["architecture"] |= {word: word, words[33]: 10.0**-step, words[2]: words[step]}
        runs.append(planned(config, values, "tune", tried))
        status = "finished" if loss else "diverged"
        run = make_run(study, config, loss, status=status, **_summary(word, words))
        _rewrite(run, config, [word], loss or 5.0)
    return runs


def _summary(word, words):
    named = "device commit continued_from diverged".split()
    return dict.fromkeys(named, word) | {
        "versions": {"python": word, "torch": word, word: word},
        "warnings": [f"{place} {text}" for place, text in enumerate(words)],
        "source": dict.fromkeys(words, word),
        "batch_chain": " ".join(words),
        "error": f"Traceback\n{word}",
        "data": {
            "identity": DATA | {"type": words[0], words[1]: words[2]},
            "fingerprint": words[33],
            "corpus": {"type": words[0], words[1]: words[2]},
            "notes": words,
            "split": words[3],
        },
    }


def _rewrite(run, config, found, loss, valid=False):
    """Makes hostile what of a config.yaml is not in its hash, and names in metrics.jsonl."""
    word = found[0]
    config["about"] = {"source": word, "unverified": word}
    config["warnings"] = [word]
    config["norm"] |= {"formula": word, "source": f"{word}, arXiv:1910.07467"}
    config["placement"] |= {"source": word, "unverified": word}
    if not valid:
        config["choices"] |= dict.fromkeys(config["choices"], word) | {word: word}
        config["chosen"]["choices"] |= {"embed": word, word: word}
        config["architecture"][word] = word
        config["placement"]["equation"] = {"attention": word, word: word}
        config["study"] = word
    resolved = {key: value for key, value in config.items() if key != "chosen"}
    held = {"form": 1, **config["chosen"], "resolved": resolved}
    (run / "config.yaml").write_text(yaml.dump(held, Dumper=yaml.CSafeDumper, sort_keys=False))
    edit(run, choices=config["choices"])
    names = ["stream_rms/0"]
    for word in found if valid else ():
        names += [word, f"stream_rms/{word}", f"gradient_norm/{word}/0", f"{word}/0"]
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 5):
            row = {"step": step, "tokens": step * CONTEXT * BATCH}
            row |= dict.fromkeys(("train/loss", "val/loss"), loss + 4 - step)
            row |= {f"probe/{name}": 1.0 + step for name in names}
            row |= {"\ud800": step}  # half a pair, which JSON can spell
            file.write(f"{json.dumps(row)}\n")


def folder_of(words):
    """A study's name as hostile as a file system takes it."""
    return Path(words[2].replace("/", "|"))
