"""Rounded matrices: the grid, the loss and the outliers by hand, and planted."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from analyses.quantization import (
    Inputs,
    Products,
    Rounded,
    Setting,
    by_kind,
    measure,
    round_to_grid,
)
from untrained import DEPTH, model_and_text, sequences

from transformer_norms.model.transformer import Transformer
from transformer_norms.names import options
from transformer_norms.progress import tell_nobody

ROUNDED = "query key value output up gate down attention_gate value_gate".split()
CASES = [
    ("mhc", "rmsnorm", []),
    ("post", "layernorm", ["architecture.tied=false", "architecture.bias=true"]),
    ("residual_dual", "rmsnorm", ["mlp=swiglu", "architecture.attention_gate=elementwise"]),
    ("parallel", "gatednorm", ["embed=fixnorm", "model.kv_heads=1"]),
]

KEYS = [(part, by_row) for part in ("weights", "inputs", "both") for by_row in (False, True)]


def grid(values, bits, by_row):
    """The nearest multiples of the largest value over 2^(bits - 1) - 1, number by number."""
    levels = 2 ** (bits - 1) - 1
    rows = values.reshape(-1, values.shape[-1]).tolist()
    largest = max(abs(x) for row in rows for x in row)
    scales = [(max(map(abs, row)) if by_row else largest) / levels for row in rows]
    out = [[scale * round(x / scale) for x in row] for scale, row in zip(scales, rows, strict=True)]
    return torch.tensor(out, dtype=values.dtype).view_as(values)


def clamped(values, bits, largest):
    """The same with the scale of a whole input, which was read before anything was rounded."""
    levels = 2 ** (bits - 1) - 1
    scale = largest / levels
    return (values / scale).round().clamp(-levels, levels) * scale


def change_given(path, change_input, module, given):
    """A gate is given what it multiplies, and then what its matrix reads some channels of."""
    *before, x = given if path.endswith("_gate") else given[:1]
    return (*before, change_input(path, x[..., : module.in_features]))


@torch.no_grad()
def loss_by_hand(loaded, change_weight, change_input):
    """Nats per token of a copy that has other weights, and whose matrices read other inputs."""
    model, nats = copy.deepcopy(loaded.model), 0.0
    head = (model.embedding if model.head is None else model.head).weight.clone()
    for path, module in model.named_modules():
        if ".f." in path and path.split(".")[-1] in ROUNDED:
            module.weight.copy_(change_weight(module.weight))
            module.register_forward_pre_hook(partial(change_given, path, change_input))
    for tokens in sequences(loaded):
        states = change_input("head", model.states(tokens[None, :-1]))
        bias = 0 if model.head is None or model.head.bias is None else model.head.bias
        logits = states @ change_weight(model.rows(head)).T + bias
        chosen = model.cap(model.logit_scale(logits))[0].log_softmax(-1)
        nats -= chosen[torch.arange(len(tokens) - 1), tokens[1:]].sum().item()
    return nats / 19


def test_a_grid_is_that_of_hand_arithmetic():
    x = torch.tensor([[-7.0, 0.5, 1.5, 2.5, -3.49], [0, 0, 0, 0, 0]], dtype=torch.float64)
    by_hand = torch.tensor([[-7.0, 0, 2, 2, -3], [0, 0, 0, 0, 0]], dtype=torch.float64)
    assert torch.equal(round_to_grid(x, 4, x.abs().max()), by_hand)
    assert torch.equal(round_to_grid(x, 4, x.abs().amax(-1, keepdim=True)), by_hand)
    assert round_to_grid(x, 4, torch.tensor(3.5))[0].tolist() == [-3.5, 0.5, 1.5, 2.5, -3.5]
    y = torch.randn(6, 50, dtype=torch.float64)
    for bits in (2, 4, 8):
        for by_row in (False, True):
            largest = y.abs().amax(-1, keepdim=True) if by_row else y.abs().max()
            rounded = round_to_grid(y, bits, largest)
            assert torch.equal(rounded, grid(y, bits, by_row))
            assert len(set(rounded[0].tolist())) <= 2**bits - 1


@pytest.mark.parametrize(
    ("placement", "norm", "left_alone"),
    [
        ("pre", "gatednorm", "pre final"),
        ("laurel", "rmsnorm", "skip"),
        ("gemma3n_inputs", "rmsnorm", "skip connection enter final"),
        ("mhc", "rmsnorm", "connection final"),
    ],
)
def test_matrices_beside_attention_mlp_and_head_are_those_that_the_legend_names(
    placement, norm, left_alone
):
    model = model_and_text(placement=placement, norm=norm).model
    names = Products(model, lambda name, x, weight: (x, weight)).names
    linear = {p: m for p, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    alone = {part for path, m in linear.items() if not names[id(m.weight)]
             for part in path.split(".")}  # fmt: skip
    assert alone & {*"pre final skip connection enter f head".split()} == {*left_alone.split()}


@pytest.mark.parametrize(("placement", "norm", "typed"), CASES)
def test_losses_and_outliers_are_those_by_hand(placement, norm, typed):
    loaded = model_and_text(*typed, placement=placement, norm=norm)
    before = copy.deepcopy(loaded.model.state_dict())
    found = measure(loaded, [8, 4], tell_nobody)
    read = {}

    def keep(path, x):
        read.setdefault(path, []).append(x.flatten(0, -2))
        return x

    assert found.loss == pytest.approx(loss_by_hand(loaded, lambda w: w, keep), abs=1e-12)
    values = {path: torch.cat(each) for path, each in read.items()}
    assert set(values) == set(found.inputs)
    for path, x in values.items():
        inputs = found.inputs[path]
        assert inputs.largest == pytest.approx(x.abs().max().item())
        assert inputs.ratio == pytest.approx((x.abs().max() / (x**2).mean() ** 0.5).item())
        own = x.abs().amax(-1) / (x**2).mean(-1) ** 0.5
        assert inputs.in_a_token == pytest.approx(own.mean().item())
        assert inputs.kurtosis == pytest.approx(((x**4).mean() / (x**2).mean() ** 2).item())
    ratios = [
        max(one.ratio for path, one in found.inputs.items() if path.startswith(f"blocks.{i}."))
        for i in range(DEPTH)
    ]
    assert found.outlier == pytest.approx(np.median(ratios))
    for setting, loss in found.losses.items():
        bits, part, by_row = setting.bits, setting.part, setting.by_row

        def weight(w, bits=bits, by_row=by_row):
            return grid(w, bits, by_row)

        def given(path, x, bits=bits, by_row=by_row):
            return grid(x, bits, True) if by_row else clamped(x, bits, values[path].abs().max())

        rounds = (weight if part != "inputs" else lambda w: w,
                  given if part != "weights" else lambda path, x: x)  # fmt: skip
        assert loss == pytest.approx(loss_by_hand(loaded, *rounds), abs=1e-9), setting
        if bits == 4:
            assert abs(loss - found.loss) > 1e-5
    after = loaded.model.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
    assert found.loss == loaded.evaluate()


@pytest.mark.nightly
@pytest.mark.parametrize("placement", options("placement"))
def test_every_placement_has_its_loss_by_hand(placement):
    loaded = model_and_text(placement=placement)
    found = measure(loaded, [4], tell_nobody)
    by_hand = loss_by_hand(loaded, lambda w: grid(w, 4, True), lambda path, x: grid(x, 4, True))
    assert found.losses[Setting(4, "both", True)] == pytest.approx(by_hand, abs=1e-9)
    assert len(found.inputs) == 6 * DEPTH + 1


def test_before_rounding_bf16_is_float32_too():
    loaded = replace(model_and_text(placement="pre"), precision="bf16")
    loaded.model.float()
    found = measure(loaded, [8], tell_nobody)
    assert found.loss == replace(loaded, precision="fp32").evaluate() != loaded.evaluate()


def test_a_model_with_values_that_are_not_finite_is_one_line():
    loaded = model_and_text(placement="pre")
    with torch.no_grad():
        loaded.model.blocks[0].mlp.f.up.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="not finite; no grid holds them"):
        measure(loaded, [8], tell_nobody)


def test_the_model_multiplies_as_before_after_a_failure(monkeypatch):
    loaded = model_and_text(placement="pre")
    before = loaded.evaluate()
    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "logits", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            measure(loaded, [4], tell_nobody)
    assert loaded.evaluate() == before


def test_matrices_that_read_the_same_are_one_row():
    names = ("query_down", "kv_down", "query", "key", "value")
    inputs = {
        f"blocks.0.attention.f.{name}": Inputs(ratio, 1.0, 1.0, 3.0)
        for name, ratio in zip(names, (5, 5, 2, 3, 3), strict=True)
    }
    rows = list(Rounded(0.0, 1, {Setting(4, *key): 0.0 for key in KEYS}, inputs).rows)
    found = {row["matrices"]: row["ratio"] for row in by_kind(rows)}
    assert found == {"query_down, kv_down": 5, "query": 2, "key, value": 3}
