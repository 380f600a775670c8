"""The coordinate check: a change by hand with torch's own AdamW, and muP's law."""

import pytest
import torch

from transformer_norms.analysis.coordinate_check import (
    compute_parts,
    law_of,
    measure,
    measure_changes,
    read_variants,
)
from transformer_norms.analysis.untrained_models import VOCABULARY, draw_tokens
from transformer_norms.config.building import build_model

SMALL = ("model.width=16,32", "model.depth=1", "model.context=8", "seed=3")


def test_the_changes_are_those_of_torchs_own_steps():
    _, variants = read_variants([*SMALL, "init=gpt2", "optimizer.weight_decay=0"])
    config = variants["gpt2"][1]
    assert (config.model.width, config.model.heads) == (32, 1)
    tokens = draw_tokens(config)
    model = build_model(config, VOCABULARY).double()
    branches = {}
    for part in ("attention", "mlp"):
        f = getattr(model.blocks[0], part).f
        f.register_forward_hook(lambda _m, _i, out, part=part: branches.update({part: out}))
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.99), weight_decay=0)
    before = model(tokens[:, :-1]).detach()
    branches_before = {part: out.detach() for part, out in branches.items()}
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    after = model(tokens[:, :-1]).detach()
    found = measure_changes(config, 3)
    assert found["logits"] == pytest.approx(((after - before) ** 2).mean().sqrt().item(), rel=1e-6)
    for part, out in branches.items():
        change = (out.detach() - branches_before[part]).square().mean().sqrt().item()
        assert found[part] == pytest.approx(change, rel=1e-6)


def test_all_blocks_count_and_the_model_is_left_as_it_was():
    _, variants = read_variants(["model.width=16,32", "model.depth=3", "init=gpt2", "seed=0"])
    model = build_model(variants["gpt2"][0], VOCABULARY).double()
    tokens = draw_tokens(variants["gpt2"][0])[:, :-1]
    parts = compute_parts(model, tokens)
    numbers = {"attention": 3 * 16, "mlp": 3 * 16, "states": 16, "logits": VOCABULARY}
    found = {part: len(values) / tokens.numel() for part, values in parts.items()}
    assert found == numbers
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_one_rate_for_all_widths_changes_wide_models_more_and_that_of_mup_does_not():
    """Tensor Programs V: with Adam at one rate W x changes by as much as the width; at a rate that
    falls as 1/width not at all."""
    typed = "model.width=32,64,128,256", "seed=0,1", "model.context=32", "init=mup"
    _, variants = read_variants([*typed, "optimizer.lr_factor.matrices=1,128/d"])
    rows = measure(variants, 3)
    one_rate, divided = dict.fromkeys(row["model"] for row in rows)
    for part in ("attention", "mlp"):
        assert law_of(rows, one_rate, part).slope > law_of(rows, divided, part).slope + 0.6
    assert abs(law_of(rows, divided, "mlp").slope) < 0.5
    assert abs(law_of(rows, divided, "logits").slope) < 0.4
