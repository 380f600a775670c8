"""Plants bugs of the architecture, one at a time, and prints the test that kills each.

    python tests/planted_bugs.py --jobs 2 > tests/planted_bugs.md

Each lives in a copy, never in this tree, and exchanges a text that must be there just once. Its
hint's tests run first; it survives if all others pass too. In the end the killers run without a
bug, and must pass. Exit code 1 if a bug survives.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "transformer_norms configs hydra_plugins tests".split()
TESTS = "mlp optimizer initialization fingerprints norms parity theory block_equations "
TESTS += "position overfit presets hf trainer config_compose catalogue"  # the quickest first

# What is wrong | in which YAML or module | whose tests run first. `-` is there, `+` is planted:
# in a placement that is a paper misread.
BUGS = """
# pre-norm's norm stands after the addition | placement/pre.yaml | fingerprints
- equation: x + f(norm(x))
+ equation: norm(x + f(x))
# the skip carries the normed x | model/block.py | fingerprints
- self.skip(x, start, x0) + self
+ self.skip(self.pre(x), start, x0) + self
# both sub-layers share their norms | model/assembly.py | parity
- **{name: self.site(plan, name, kind, values) for name in ("pre", "out", "post")},
+ **{n: shared.setdefault(n, self.site(plan, n, kind, values)) for n in ("pre", "out", "post")},
# hybrid has no final norm, attention's post-norm is taken for it | model/placement.py | parity
- self.plans(depth - 1, depth)["mlp"]
+ self.plans(depth - 1, depth)["attention"]
# post is normed twice at the end | model/placement.py | parity
- return self.topology == "serial" and last.site("post").norm != "none"
+ return False
# peri has no norm on the embedding | placement/peri.yaml | fingerprints
- brings: {embed: norm}
+ brings: {embed: none}
# deepnorm's N counts sub-layers | model/settings.py | fingerprints
- "N": sizes.depth
+ "N": 2 * sizes.depth
# deepnorm's beta shrinks q and k as well | init/deepnorm.yaml | initialization
-   default: sqrt(2/(fan_in + fan_out))
+   default: (8*N)**-0.25 * sqrt(2/(fan_in + fan_out))
# deepnorm's beta is (8N)^(+1/4) at W_o | init/deepnorm.yaml | initialization
-   output: (8*N)**-0.25
+   output: (8*N)**0.25
# hybrid's norm on the stream comes after the mlp | placement/hybrid.yaml | fingerprints
- "norm(x + f(x, q=norm, k=norm, v=norm))", mlp: x + f(x)}
+ "x + f(x, q=norm, k=norm, v=norm)", mlp: norm(x + f(x))}
# hybrid's q, k and v are normed over all heads | placement/hybrid.yaml | parity
- q=norm, k=norm, v=norm
+ q=norm@full, k=norm@full, v=norm@full
# hybrid_star's first block has norm(y) on its skip | placement/hybrid_star.yaml | fingerprints
-     equation: {attention: "x + f(norm(x), q=norm, k=norm, v=norm)", mlp: x + f(norm(x))}
+     equation: {attention: "norm(x + f(norm(x), q=norm, k=norm, v=norm))", mlp: x + f(x)}
# hybrid_star's pre-norm reaches the second block | placement/hybrid_star.yaml | fingerprints
- blocks: i == 0
+ blocks: i <= 1
# mixln's quarter is the last | placement/mixln.yaml | fingerprints
- blocks: l <= 0.25*N
+ blocks: 0.75*N < l
# lns divides by sqrt(i + 2) | placement/lns.yaml | fingerprints
- equation: x + f(norm(x) / sqrt(l))
+ equation: x + f(norm(x) / sqrt(l + 1))
# B2T's second skip takes the place of the first | model/coefficient.py | fingerprints
- y = y + getattr(self, name)(streams[name])
+ y = getattr(self, name)(streams[name])
# the parallel mlp reads what the attention wrote | model/block.py | fingerprints
- return x + self.attention.update(h, *context) + self.mlp.update(h, *context)
+ y = x + self.attention.update(h, *context)
+         return y + self.mlp.update(self.pre(y), *context)
# ResiDual's second stream forgets its sum | model/block.py | fingerprints
- sub_layer.post(x + u), r + u
+ sub_layer.post(x + u), x + u
# rezero learns a number for each sub-layer | model/assembly.py | theory
- held = shared if spec.get("share") == "block" else own
+ held = own
# normformer's head scale stands after W_o | model/attention.py | parity
- context = self.head_scale(self.head_norm(self.mix(q, k, v, x)))
-         return self.output(self.ctx(context.flatten(2)))
+ context = self.head_norm(self.mix(q, k, v, x)).flatten(2)
+         return self.head_scale(self.split(self.output(self.ctx(context)))).flatten(2)
# subln's norm stands before the activation | model/mlp.py | parity
- self.mid(self.activation(self.up_scale(self.up(x))))
+ self.activation(self.mid(self.up_scale(self.up(x))))
# nGPT's steps may be negative | placement/ngpt.yaml | parity
- stored: 1/sqrt(d), function: absolute}
+ stored: 1/sqrt(d)}
# nGPT's W_o and W_down have rows of length 1 | model/constraint.py | theory
- axis = 0 if name.rpartition(".")[2] in WRITES else 1
+ axis = 1
# nGPT's weights leave the sphere with the first step | training/trainer.py | theory
- self.model.constrain(self.model)
+ pass
# the attention sees the next token | model/attention.py | parity
- mask, causal = None, self.causal and time == known
+ mask, causal = torch.ones(time, known, dtype=torch.bool).tril(known - time + 1), False
# logits are divided by sqrt(d) | config/resolution.py | parity
- "attention_scale": "1/sqrt(dh)"
+ "attention_scale": "1/sqrt(d)"
# under a cap the logits are not divided by sqrt(dh) | model/attention.py | block_equations
- partial(capped_attention, cap=self.cap)
+ lambda *qkv, **how: capped_attention(*qkv, **how | {"cap": self.cap, "scale": 1.0})
# the cap lifts what is masked to -cap | model/capped.py | parity
- bounded.shape[1:], float("-inf")
+ bounded.shape[1:], -cap
# k's norm is forgotten | model/attention.py | parity
- k = self.turn(self.k,
+ k = self.turn(nothing,
# rotations come before the norms of q and k | model/attention.py | parity
- {"before": norm_first,
+ {"before": rotate_first,
# v is rotated with q and k | model/attention.py | parity
- v = self.v(self.split(self.value(x)))
+ v = self.turn(self.v, self.split(self.value(x)), angles)
# rotary exponents are j/r, half of what they are | model/position.py | parity
- torch.arange(0, turned, 2, dtype=torch.float32) / turned
+ torch.arange(turned // 2, dtype=torch.float32) / turned
# shared keys go round the queries, not by group | model/attention.py | parity
- t.repeat_interleave(self.groups, dim=2)
+ t.repeat(1, 1, self.groups, 1)
# the attention drops out in evaluation too | model/attention.py | block_equations
- self.dropout if self.training else 0.0
+ self.dropout
# a tied head is scaled with the embedding | model/transformer.py | parity
- weight, bias = self.embedding.weight, None
+ weight, bias = self.scale(self.embedding.weight), None
# positions are scaled with the embedding | model/transformer.py | block_equations
- return position(scale(x), start)
+ return scale(position(x, start))
# logits are capped before they are scaled | model/transformer.py | block_equations
- self.cap(self.logit_scale(F.linear(states, self.rows(weight), bias)))
+ self.logit_scale(self.cap(F.linear(states, self.rows(weight), bias)))
# eps stands outside the root | norms/division.py | norms
- (square + self.eps if self.eps else square).rsqrt()
+ 1 / (square.sqrt() + self.eps)
# rmsnorm has LayerNorm's eps | norm/rmsnorm.yaml | parity
- eps: 1e-6
+ eps: 1e-5
# LayerNorm leaves the mean in | norms/layernorm.py | norms
- F.layer_norm(y, (self.width,), *self.gain_and_bias(y.dtype), self.eps)
+ F.rms_norm(y, (self.width,), self.gain_and_bias(y.dtype)[0], self.eps)
# rmsnorm multiplies by 1 + gain | norms/rmsnorm.py | norms
- divide(y, gain, self.length)
+ divide(y, None if gain is None else 1 + gain, self.length)
# LayerNorm's variance is unbiased | norms/layernorm.py | norms
- return F.layer_norm(y, (self.width,), *self.gain_and_bias(y.dtype), self.eps).to(x.dtype)
+ gain, bias = self.gain_and_bias(y.dtype)
+         y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + self.eps).sqrt()
+         return ((y if gain is None else y * gain) + (0 if bias is None else bias)).to(x.dtype)
# init=scaled does not know the depth at W_o | init/scaled.yaml | initialization
- output: default/sqrt(2*N)
+ output: default
# weights are drawn by their place in the model | model/initialization.py | theory
- draw(f"{name}.weight",
+ draw(f"{list(model.modules()).index(module)}",
# fan_in and fan_out are exchanged | model/initialization.py | initialization
- {"fan_in": columns, "fan_out": rows}
+ {"fan_in": rows, "fan_out": columns}
# weight decay acts on gains | training/optimizer.py | optimizer
- "norms": decay_norms
+ "norms": True
"""


def bugs():
    """(number, name, file, its text with the bug, whose tests run first)"""
    for number, text in enumerate(BUGS.split("\n# ")[1:], start=1):
        head, *lines = text.strip("\n").split("\n")
        name, place, hint = head.split(" | ")
        file = ("configs/" if place.endswith(".yaml") else "transformer_norms/") + place
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        whole = (ROOT / file).read_text()
        if whole.count(old) != 1:
            sys.exit(f"{number}. {name}: {whole.count(old)} times in {file}:\n{old}")
        yield number, name, file, whole.replace(old, new), hint


def first_failure(tests, file=None, whole=None):
    """The first test that fails in a copy where `file` is `whole`, or None."""
    with TemporaryDirectory() as folder:
        for name in FOLDERS:
            shutil.copytree(ROOT / name, Path(folder, name), ignore=lambda *_: ["__pycache__"])
        shutil.copy(ROOT / "pyproject.toml", folder)
        if file:
            Path(folder, file).write_text(whole)
        command = [sys.executable, *"-m pytest -x -n 0 -rfE --tb=no".split(), *tests]
        env = {**os.environ, "PYTHONPATH": folder, "COLUMNS": "1000"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    failed = re.search(r"^FAILED tests/(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if failed is None and done.returncode != 0:
        sys.exit(f"the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed and failed[1]


def hunted(bug):
    number, name, file, whole, hint = bug
    start = time.monotonic()
    tests = [f"tests/test_{area}.py" for area in dict.fromkeys([hint, *TESTS.split()])]
    killer = first_failure(tests, file, whole)
    by = f"`{killer}`" if killer else "**survives**"
    line = f"| {number} | {name} | {file} | {by} | {time.monotonic() - start:.0f} |"
    print(line, file=sys.stderr, flush=True)
    return killer, line


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1)
    given = parser.parse_args()
    chosen = [bug for bug in bugs() if given.only is None or bug[0] in given.only]
    start = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        found, lines = zip(*pool.map(hunted, chosen), strict=True)
    killers = sorted({f"tests/{killer}" for killer in found if killer})
    innocent = first_failure(killers) if killers else None
    killed, minutes = sum(map(bool, found)), (time.monotonic() - start) / 60
    print(f"# Planted bugs: {killed} of {len(chosen)} killed\n")
    print(f"`python tests/planted_bugs.py`, {date.today()}, {minutes:.0f} minutes\n")
    print("| | bug | planted in | killed first by | s |\n|--:|---|---|---|--:|", *lines, sep="\n")
    if innocent:
        sys.exit(f"this fails without any bug: {innocent}")
    sys.exit(killed < len(chosen))


if __name__ == "__main__":
    main()
