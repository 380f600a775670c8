"""A folder of plugins adds attentions, a loss, a schedule, an optimizer: each is its formula."""

import json
from functools import partial
from math import log, sqrt
from pathlib import Path

import pytest
import torch
import trainers
from generating import from_a_cache
from plugin_folders import write_plugins
from refusing import refused
from trainers import VOCABULARY, tokens
from written_out import by_hand

from transformer_norms import compose, load, train
from transformer_norms.commands.sample import main as sample
from transformer_norms.model.mlp import MLP
from transformer_norms.report.__main__ import main as report
from transformer_norms.training import loss as loss_module
from transformer_norms.training.causality import pass_warnings
from transformer_norms.training.probes import STREAM_PROBES

WINDOW, CONTEXT, HEAD = 3, 16, 16
PLUGIN = Path(__file__).with_name("plugin_of_tests.txt").read_text()  # the code of mine.py
YAMLS = {
    "attention/window": f"type: window\nwindow: {WINDOW}\n",
    "attention/linear": "type: linear\n",
    "attention/strict": "type: strict\n",
    "mlp/faded": "type: faded\nactivation: gelu\nshare: 0.25\n",
    "loss/z_loss": "type: z_loss\nz_weight: 0.05\n",
    "schedule/root": "type: root\n",
    "schedule/bounded": "type: bounded\nwarmup: 20\ndecay: none\n",
    "optimizer/signs": "type: signs\nlr: 1e-3\n",
}
ALL = ["attention=window", "loss=z_loss", "schedule=root", "optimizer=signs"]
SIZES = ["model=nano", f"model.context={CONTEXT}", "trainer.batch_size=4", "trainer.threads=1"]
SIZES += ["trainer.device=cpu", "trainer.probe_every=0"]
WATCHED = "trainer.precision=fp64", "trainer.probe_every=1"


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    write_plugins(folder, PLUGIN, YAMLS)
    yield folder
    STREAM_PROBES.pop("stream_rank", None)  # other tests expect the built-in ones


@pytest.fixture
def trainer_of(mine):
    return partial(trainers.trainer_of, f"plugins={mine}", sizes=SIZES)


SEEN = {
    "plain": ([], {"window": WINDOW}),
    "scaled": (["architecture.attention_scale=0.7"], {"window": WINDOW, "scale": 0.7}),
    "capped": (["architecture.attention_cap=0.4"], {"window": WINDOW, "cap": 0.4}),
    "shared keys": (["model.kv_heads=1", "placement=qkv"], {"window": WINDOW}),
    # The learned scale of queries of length 1 multiplies q before the attention meets it.
    "unit queries": (["qk_norm=l2"], {"window": WINDOW, "scale": 1.0}),
    "no key": (["attention=strict"], {}),
    "no key, capped": (["attention=strict", "architecture.attention_cap=5"], {"cap": 5.0}),
    "no key, ALiBi": (["attention=strict", "position=alibi", "model.heads=1"],
                      {"slopes": [2.0**-8], "scale": 1 / 8}),
    "no key, window": (["attention=strict", "architecture.sliding_window=4"], {"window": 4}),
}  # fmt: skip


@pytest.mark.parametrize("case", SEEN)
def test_what_a_query_sees_is_masked_softmax(case, trainer_of):
    """A query that sees no key has context zero in every kernel, and a finite gradient."""
    typed, how = SEEN[case]
    strict = "attention=strict" in typed
    typed = typed if strict else ["attention=window", *typed]
    trainer = trainer_of(*WATCHED, *typed)
    model, met = trainer.model, []
    attend = model.blocks[0].attention.f.attend
    attend.register_forward_hook(lambda attend, given, context: met.append((*given[:3], context)))
    assert pass_warnings(model, VOCABULARY) == []  # it looks at nothing ahead
    met.clear()
    assert trainer.train_step() is None
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    (*qkv, context), *_ = met  # the probe's pass came first
    sees = (lambda query, key: key < query and query % 2 == 0) if strict else lambda *_: True
    wanted, entropy, largest = by_hand(*qkv, **{"scale": 1 / sqrt(HEAD), "sees": sees, **how})
    torch.testing.assert_close(context, wanted, rtol=1e-9, atol=1e-11)
    assert trainer.probed["probe/attention_entropy/0"] == pytest.approx(entropy, rel=1e-4)
    assert trainer.probed["probe/attention_logit/0"] == pytest.approx(largest, rel=1e-4)
    check_cache(model.eval())


@torch.no_grad()
def check_cache(model):
    read = tokens()[:, :CONTEXT]
    found, _ = from_a_cache(model, read, [5, 1, 4, 6])
    torch.testing.assert_close(found, model(read), rtol=1e-9, atol=1e-11)


def test_an_attention_may_own_weights_and_have_no_logits(trainer_of):
    trainer = trainer_of("attention=linear", *WATCHED)
    gate = trainer.model.blocks[1].attention.f.attend.gate.weight
    first = gate.detach().clone()
    assert first.std() > 0  # drawn as every other matrix is
    assert trainer.train_step() is None
    assert not torch.equal(first, gate)
    assert "probe/gradient_norm/attention.attend.gate/1" in trainer.probed
    assert not any("entropy" in key or "logit" in key for key in trainer.probed)
    assert "blocks.1.attention.f.attend.gate.weight" in trainer.tensors()["model"]
    check_cache(trainer.model.eval())


def test_an_attention_refuses_in_one_line_what_it_cannot_do(trainer_of):
    linear = "not allowed with attention=linear: it has no"
    for name, typed, said in [
        ("linear", "architecture.attention_cap=5", f"{linear} logits to bound"),
        ("linear", "model.dropout=0.1", f"{linear} weights to drop"),
        ("linear", "placement=qk_cap", f"{linear} logits to bound"),
        ("window", "attention.window=0", "attention.window: 0 is not allowed"),
        ("windo", "seed=1", "did you mean 'window'"),
    ]:
        assert said in refused(trainer_of, f"attention={name}", typed)


def test_a_probe_of_the_stream_is_one_function(trainer_of):
    trainer, streams = trainer_of(*WATCHED), []
    trainer.model.blocks[1].register_forward_hook(lambda block, given, y: streams.append(y))
    assert trainer.train_step() is None
    x, *_ = streams  # the probe's pass came first; squared singular values are the eigenvalues
    spread = torch.linalg.svdvals((x - x.mean((0, 1))).flatten(0, 1)) ** 2
    wanted = (spread.sum() ** 2 / spread.square().sum()).item()
    assert trainer.probed["probe/stream_rank/1"] == pytest.approx(wanted, rel=1e-4)
    assert {"probe/stream_rank/embedding", "probe/stream_rms/1"} <= trainer.probed.keys()


@pytest.mark.parametrize(
    ("typed", "replicas", "tolerance"),
    [
        (["trainer.precision=fp64"], 1, 1e-11),
        (["trainer.precision=fp64", "architecture.logit_cap=3"], 2, 1e-11),
        (["trainer.precision=fp64", "trainer.activation_checkpointing=true"], 4, 1e-11),
        (["trainer.precision=bf16"], 2, 0.03),
    ],
)
def test_a_z_loss_has_its_formulas_gradient(typed, replicas, tolerance, trainer_of, monkeypatch):
    loss = "loss=z_loss", "init=scaled"
    trainer, batch = trainer_of(*loss, *typed, replicas=replicas), tokens()
    whole = trainer_of(*loss, "trainer.precision=fp64", *typed[1:]).model
    monkeypatch.setattr(loss_module, "LOGITS", 5 * VOCABULARY * replicas)
    # log-probabilities and logsumexp written out, over all tokens at once
    logits = whole(batch[:, :-1]).flatten(0, 1)
    normalizer = logits.exp().sum(-1).log()
    nats = (normalizer - logits.gather(-1, batch[:, 1:].reshape(-1, 1))[:, 0]).mean()
    trained_on = nats + 0.05 * normalizer.square().mean()
    wanted = torch.autograd.grad(trained_on, list(whole.parameters()))
    total = trainer.micro_batches.backward(batch, 0)
    near = {"rtol": tolerance, "atol": tolerance / 10}
    expected = torch.stack((trained_on, nats)).to(total.dtype)
    torch.testing.assert_close(total, expected, **near)
    found = [parameter.grad.double() for parameter in trainer.parameters]
    torch.testing.assert_close(found, [*wanted], **near)
    # An evaluation is plain cross-entropy.
    evaluated, count, _ = trainer.evaluate([batch])
    assert evaluated / count == pytest.approx(nats.item(), rel=tolerance)


def test_divergence_reads_nats_and_the_rows_what_was_trained_on(trainer_of):
    usual, z = (trainer_of("init=scaled", f"loss={name}") for name in ("cross_entropy", "z_loss"))
    # At the start the logits are small: their logsumexp is log(vocabulary).
    more = trainers.losses(z, 1)[0] - trainers.losses(usual, 1)[0]
    assert z.divergence.initial == pytest.approx(usual.divergence.initial, rel=1e-6)
    assert more == pytest.approx(0.05 * log(VOCABULARY) ** 2, rel=0.1)
    z.loss.criterion = lambda logits, targets: logits.sum() * float("inf")
    assert "the loss is " in z.train_step()


def test_a_schedule_without_a_warm_up_and_an_optimizer_act_as_their_formulas(trainer_of):
    trainer = trainer_of("schedule=root", "optimizer=signs", "trainer.clip=0")
    assert trainer.divergence.warmup == 0
    assert trainer_of("schedule.warmup=7").divergence.warmup == 7
    for step in range(3):
        before = [parameter.detach().clone() for parameter in trainer.parameters]
        assert trainer.train_step() is None
        for old, new in zip(before, trainer.parameters, strict=True):
            size = (new - old)[(new - old).abs() > 1e-9].detach().abs().numpy()
            assert size == pytest.approx(1e-3 / sqrt(step + 1), rel=1e-2, abs=1e-6)
            assert size.size > 0


def test_an_mlp_has_settings_of_its_own(trainer_of):
    mlp = trainer_of("mlp=faded", "mlp.share=0.5").model.blocks[0].mlp.f
    x = torch.randn(2, 3, mlp.up.in_features)
    torch.testing.assert_close(mlp(x), 0.5 * MLP.forward(mlp, x))


def test_a_run_with_all_of_them_trains_is_loaded_sampled_and_reported(mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("the cat sat on the mat and the dog sat on the log " * 60)
    typed = ["model=nano", "data=text", "data.paths=corpus.txt", "tracking=none", *ALL]
    typed += ["trainer.batch_size=32", "trainer.steps=40", "trainer.threads=2"]
    typed += ["attention.window=9", "model.context=32", "data.val_tokens=99"]
    summary = train(compose([f"plugins={mine}", *typed]))
    folder = Path(summary["folder"])
    assert (summary["status"], summary["replicas"]) == ("finished", 2)
    assert dict(text.split("=") for text in ALL).items() <= summary["choices"].items()
    assert {"window", "z_loss", "root", "signs"} <= set(folder.name.split("-"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert summary["val_loss"] < summary["initial_loss"] - 0.5
    entropy = next(row[key] for row in rows if (key := "probe/attention_entropy/0") in row)
    assert 0 < entropy <= log(9)
    model = load(folder, plugins=str(mine))
    assert model.blocks[0].attention.f.attend.window == 9
    assert sample([str(folder), "--prompt", "the", "--tokens", "50", "--plugins", str(mine)]) == 0
    assert report([str(folder)]) == 0


def test_what_a_schedule_of_ones_own_calls_decay_is_no_share_of_the_steps(mine):
    config = compose([f"plugins={mine}", "data=stories", "schedule=bounded", *SIZES])
    assert not [w for w in config.warnings if "schedule" in w]
