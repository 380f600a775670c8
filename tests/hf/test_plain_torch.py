"""A run as one file of plain torch: the logits and gradients of the run, for every norm and every
placement, and a file that transformers loads."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import SIZES, VOCABULARY, drawn, some_tokens
from torch.nn.functional import cross_entropy

from transformer_norms import load, train
from transformer_norms.config.compose import compose
from transformer_norms.hf.__main__ import main
from transformer_norms.hf.plain_torch.plain_folder import ModelFile, difference
from transformer_norms.names import options

NONCAUSAL = "norm=batchnorm norm.allow_noncausal=true"
SPREAD = [
    "placement=pre",
    "placement=hybrid norm=group_rmsnorm",
    "placement=normformer norm=layernorm",
    "placement=ngpt",
    "placement=mhc mlp=swiglu model.kv_heads=1",
    "placement=lns norm=dyt norm.alpha_init={attention:0.8,mlp:0.2,final:0.2}",
    "placement=post norm=gatednorm",
    "placement=mixln norm=scalenorm position=learned architecture.bias=true",
    "placement=gemma3n_inputs norm=seednorm",
    "placement=residual_dual architecture.rope_interleaved=true architecture.attention_cap=5",
]
KEPT = """embed=fixnorm|qk_norm=full|qk_norm=per_head v_norm=head|position=learned|position=none
architecture.rope_base=5e5 architecture.rope_interleaved=true|architecture.tied=false
mlp=geglu_tanh model.kv_heads=1|mlp=gelu architecture.bias=true|norm=dyt final_norm=layernorm
architecture.attention_scale={learn:head,init:0.3}|architecture.embed_scale_order=after
architecture.bias=[query,head] architecture.tied=false|norm=none placement=none"""
OTHERS = """attention=sinks|position=alibi|position=sinusoidal|position=rope_yarn
model.kv_heads=1+l%2|architecture.rope_base=10000*(l%2==0)|architecture.rope_fraction=0.5
architecture.attention_chunk=4|architecture.value_residual=0.5|architecture.value_embedding=1
architecture.attention_gate=per_head|architecture.temperature_floor=3|architecture.smear=8
architecture.activation_sparsity=0.5|architecture.sliding_window=4|architecture.logit_cap=30
architecture.q_rank=8|architecture.kv_rank=8|architecture.value_dim=4"""
NORMS = [f"norm={name}" for name in options("norm") if name != "batchnorm"]
EVERY = [NONCAUSAL, *NORMS, *(f"placement={name}" for name in options("placement"))]
EVERY += re.split(r"[|\n]", KEPT)


def written(case, folder):
    """The file of a config, and its module."""
    keys = dict(word.split("=", 1) for word in (*SIZES, *case.split()))
    file = ModelFile(compose([f"{key}={value}" for key, value in keys.items()]), VOCABULARY)
    path = folder / "model.py"
    path.write_text(file.source())
    spec = importlib.util.spec_from_file_location("model", path)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return file, module, path


def compare(case, folder):
    """The logits and the gradients of all weights, where no weight is what it starts as."""
    file, module, path = written(case, folder)
    ours, tokens = file.model, some_tokens()
    state, names = ours.state_dict(keep_vars=True), file.tensors()
    with torch.no_grad():
        for seed, tensor in enumerate(state.values()):
            size = tensor.std() if tensor.numel() > 1 and tensor.std() > 0 else 1
            tensor += 0.3 * size * drawn(*tensor.shape, seed=seed).abs().to(tensor.dtype)
    # Each tensor once; a factor that two terms share has two names in a checkpoint.
    assert sorted(id(state[own]) for own in names.values()) == sorted({*map(id, state.values())})
    plain = module.Model(module.Config()).double()
    plain.load_state_dict({name: state[own].detach().clone() for name, own in names.items()})
    for training in (False, True):
        logits = [model.train(training)(tokens) for model in (plain, ours)]
        torch.testing.assert_close(*logits, rtol=1e-10, atol=1e-10)
        given = {name: one for name, one in plain.named_parameters() if one.requires_grad}
        own = [state[names[name]] for name in given]
        pull = drawn(*logits[0].shape, seed=2)
        found, expected = (
            torch.autograd.grad(y, weights, pull, materialize_grads=True, allow_unused=True)
            for y, weights in zip(logits, ([*given.values()], own), strict=True)
        )
        scale = max(float(one.abs().max()) for one in expected)
        assert 0 < scale < float("inf")
        for name, one, two in zip(given, found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10 * scale, msg=name)
    return file, path


@pytest.mark.parametrize("case", SPREAD)
def test_the_file_is_the_run_in_logits_and_gradients(case, tmp_path):
    file, path = compare(case, tmp_path)
    text = path.read_text()
    imports = re.findall(r"^ *(?:from (?=[\w.]+ import)|import )(\w+)", text, re.MULTILINE)
    assert {*imports} <= {"math", "dataclasses", "torch", "transformers"}
    assert 150 < len(text.splitlines()) < 500
    assert max(map(len, text.splitlines())) <= 88
    tidy = ["format", "--isolated", "--line-length", "88", "--check"]
    subprocess.run([sys.executable, "-m", "ruff", *tidy, path], check=True, capture_output=True)
    names = re.findall(r"^(?:class|def) (\w+)", text, re.MULTILINE)
    assert [name for name in names if len(re.findall(rf"\b{name}\b", text)) < 2] == []  # all used
    assert not re.search(r"nothing|Float\[|@\w+\(", text)


@pytest.mark.nightly
@pytest.mark.parametrize("case", EVERY)
def test_every_norm_and_placement_is_exact(case, tmp_path):
    compare(case, tmp_path)


def test_a_block_reads_as_its_equation(tmp_path):
    *_, path = written("placement=pre", tmp_path)
    assert "x = x + self.attention(self.attention_norm(x), angles)" in path.read_text()
    *_, path = written("placement=deepnorm", tmp_path)
    assert "self.attention_skip * x + self.attention(x, angles)" in path.read_text()
    assert f"attention_skip: float = {8**0.25!r}" in path.read_text()  # (2 * N)**0.25 of 4 blocks
    *_, path = written("placement=beam", tmp_path)  # sqrt((2*l - 1)/(2*l)) for the blocks l
    each = tuple(((2 * l - 1) / (2 * l)) ** 0.5 for l in range(1, 5))  # noqa: E741
    text = " ".join(path.read_text().split())
    numbers = re.search(r"attention_skip: tuple = \((.*?)\)", text)[1]
    assert [float(one) for one in numbers.strip(" ,").split(",")] == pytest.approx(each)


RUN = ["model=nano", "data=text", "data.paths=corpus.txt", "tracking=none", "trainer.threads=1"]
RUN += ["trainer.steps=3", "data.val_tokens=99", "trainer.eval_every=0", "trainer.probe_every=0"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 90)
    return train(compose([*RUN, "placement=hybrid", "model.dropout=0.1"]))["folder"]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_transformers_loads_trains_and_generates_from_the_folder(run, capfd, monkeypatch):
    import transformers

    monkeypatch.setenv("HF_MODULES_CACHE", str(Path("cache").absolute()))
    assert main([run, "out", "--torch"]) == 0
    answer = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert answer == {"folder": "out", "class": "VariantForCausalLM"}
    remote = {"trust_remote_code": True}
    theirs = transformers.AutoModelForCausalLM.from_pretrained("out", **remote)
    words = transformers.AutoTokenizer.from_pretrained("out", **remote)
    ours, tokens = load(run), words(["the cat sat", "the dog sat"], return_tensors="pt").input_ids
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-4, atol=1e-5)
    expected = cross_entropy(ours(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(theirs(tokens, labels=tokens).loss, expected)
    longer = theirs.generate(tokens, max_new_tokens=4, do_sample=False)
    assert longer[:, -1].tolist() == ours(longer[:, :-1])[:, -1].argmax(-1).tolist()
    for words.padding_side in ("left", "right"):
        rows = words(["the cat sat on", "the dog"], return_tensors="pt", padding=True)
        kept = rows.attention_mask[1].bool()
        alone = ours(rows.input_ids[1:, kept])[0]
        torch.testing.assert_close(theirs(**rows).logits[1, kept], alone, rtol=1e-4, atol=1e-5)
    card = Path("out/README.md").read_text()
    for part in ("norm(x + f(x, q=norm, k=norm, v=norm))", "unigram", "bigram", "zhuo2025",
                 "## Licence", "init=megatron", "had dropout of 0.1",
                 "3 steps of 16 rows of 32 tokens"):  # fmt: skip
        assert part in card, part


def test_what_is_not_exact_is_refused_in_one_line_and_not_left(run, capfd, monkeypatch):
    monkeypatch.setattr("transformer_norms.hf.plain_torch.plain_folder.difference", lambda *_: 1e-9)
    assert main([run, "out", "--torch"]) == 2
    assert "logits differ by 1e-09" in capfd.readouterr().err.splitlines()[-1]
    assert not Path("out").exists()


@pytest.mark.parametrize("case", re.split(r"[|\n]", OTHERS))
def test_what_no_norm_or_placement_brings_is_refused_by_its_key(case):
    config = compose([*SIZES, *case.split()])
    key = case.partition("=")[0] if "." in case.partition("=")[0] else case
    key = key.replace("position=rope_yarn", "position.scaling")
    with pytest.raises(ValueError, match=f"^{key} is not written as plain torch; `export` without"):
        ModelFile(config, VOCABULARY)


def test_a_wrong_file_is_told_from_the_run(tmp_path):
    """The comparison before a folder is left sees one wrong sign."""
    file, _, path = written("placement=pre", tmp_path)
    state = file.model.state_dict()
    weights = {name: state[own] for name, own in file.tensors().items()}
    assert difference(path, weights, file.model) < 1e-13
    path.write_text(path.read_text().replace("return x + self.mlp", "return x - self.mlp"))
    assert difference(path, weights, file.model) > 1e-3
