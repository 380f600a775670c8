"""Studies whose every free text may be anything: in each place where a folder or a record takes
one, stands a word of the caller's."""

import json
import re
from pathlib import Path

import yaml
from run_folders import BATCH, CONTEXT, DATA, config_of, edit, make_record, make_run, planned, tuned

CANARY = "window.canary=true"
# What would be more than text in a page, its scripts, its figures or its styles, if it got there.
# MARK is behind what would not be seen as text then; each payload has its own.
TEXTS = [
    f"<script>{CANARY}</script>MARK",
    f"</script><script>{CANARY}</script>MARK",
    f'"><img src=x onerror="{CANARY}">MARK',
    f"'><img src=x onerror='{CANARY}'>MARK",
    f"<svg onload={CANARY}>MARK",
    f'" autofocus tabindex=0 onfocus="{CANARY}" x="MARK',
    f"' onmouseover='{CANARY}' x='MARK",
    f"<details open ontoggle={CANARY}>MARK",
    f'<a href="javascript:{CANARY}">MARK</a>',
    f"javascript:{CANARY}//MARK",
    f"data:text/html,<script>{CANARY}</script>MARK",
    f'<iframe srcdoc="<script>parent.{CANARY}</script>"></iframe>MARK',
    "<object data=https://example.org/a></object><embed src=https://example.org/b>MARK",
    '<link rel=stylesheet href="https://example.org/a.css">MARK',
    '<base href="https://example.org/">MARK',
    '<meta http-equiv=refresh content="0;url=https://example.org/">MARK',
    "<form action=https://example.org/><button>MARK</button></form>",
    "<style>@import 'https://example.org/b.css';*{display:none}</style>MARK",
    '<p style="background:url(https://example.org/c.png)">MARK</p>',
    f"</title></style></textarea></noscript><script>{CANARY}</script>MARK",
    f"<!--<script>MARK--!><img src=x onerror={CANARY}>",
    f"]]><script>{CANARY}</script>MARK",
    "<![CDATA[MARK",
    f"<math><mtext><table><mglyph><style><img src=x onerror={CANARY}>MARK",
    f"&lt;script&gt;{CANARY}&lt;/script&gt;MARK",
    f"&#x3c;img src=x onerror={CANARY}&#x3e;MARK",
    f"\\u003cscript\\u003e{CANARY}\\u003c/script\\u003eMARK",
    f"\\x22);{CANARY}//MARK",
    f'");{CANARY};("MARK',
    f"');{CANARY};('MARK",
    "`${" + CANARY + "}`MARK",
    "{{7*7}}{{constructor.constructor('" + CANARY + "')()}}MARK",
    "%{x}%{customdata[0]}%{y:.3f}MARK",
    "<b>bold</b><i>MARK</i>",
    '<span style="font-size:99px;fill:red">MARK</span>',
    '<a href="https://example.org/d" target="_blank">MARK</a>',
    "<br><sub>below</sub><extra></extra>MARK",
    "$\\href{https://example.org/e}{x}$MARK",
    "\u2028MARK\u2029",
    "\u202eMARK\u2066",
    "MARK\x00\x1b[31m\x9b\ufeff\u200b",
    "W" * 3000 + "MARK",
    "__proto__",
    "constructor",
    "hasOwnProperty",
]
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
    return {
        "device": word,
        "commit": word,
        "versions": {"python": word, "torch": word, word: word},
        "warnings": [f"{place} {text}" for place, text in enumerate(words)],
        "source": dict.fromkeys(words, word),
        "batch_chain": " ".join(words),
        "continued_from": word,
        "diverged": word,
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
    rows = [
        {
            "step": step,
            "tokens": step * CONTEXT * BATCH,
            "train/loss": loss + 4 - step,
            "val/loss": loss + 4 - step,
            "probe/stream_rms/0": 1.0 + step,
            "\ud800": step,  # half a pair, which JSON can spell
        }
        for step in range(1, 5)
    ]
    for word in found if valid else ():
        names = word, f"stream_rms/{word}", f"gradient_norm/{word}/0", f"{word}/0"
        for row in rows:
            row |= {f"probe/{name}": 1.0 + row["step"] for name in names}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def folder_of(words):
    """A study's name as hostile as a file system takes it."""
    return Path(words[2].replace("/", "|"))
