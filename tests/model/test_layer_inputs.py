"""The inputs of blocks of Gemma 3n and 4, beside their parity with transformers (test_hf)."""

import pytest
import torch
from tiny_models import DEPTH, SIZES, VOCABULARY, WIDTH, some_tokens
from trainers import trainer_of

from transformer_norms.config.building import build_model
from transformer_norms.config.compose import compose
from transformer_norms.training.flops import flops_per_token
from transformer_norms.training.parameter_groups import groups

V, D, N, P, INPUTS = VOCABULARY, WIDTH, DEPTH, 5, ("gemma4_inputs", "gemma3n_inputs")


def model_of(placement, *typed):
    typed = [*SIZES, *typed, f"placement={placement}"]
    if placement in INPUTS:
        typed.append(f"placement.connection.inputs={P}")
    return build_model(compose(typed), V)


@pytest.mark.parametrize(("placement", "scales"), [("gemma4_inputs", 0), ("gemma3n_inputs", N * D)])
def test_parameters_and_flops_are_those_of_the_placement_without_and_a_closed_form(
    placement, scales
):
    without = placement.removesuffix("_inputs")
    table, projection, gates = V * N * P, D * N * P, N * 2 * D * P
    counts = [sum(p.numel() for p in model_of(name).parameters()) for name in (placement, without)]
    assert counts[0] - counts[1] == table + projection + P + gates + N * D + scales
    typed = [f"model.width={D}", f"model.depth={N}"]
    inputs = f"placement.connection.inputs={P}"
    one = flops_per_token(trainer_of(*typed, f"placement={placement}", inputs), 16)
    two = flops_per_token(trainer_of(*typed, f"placement={without}"), 16)
    assert one - two == 3 * 2 * (projection + gates)


@pytest.mark.parametrize("placement", INPUTS)
def test_with_inputs_of_zero_it_is_the_placement_without(placement):
    """So what transformers' models show of one placement holds of the other."""
    model, without = model_of(placement), model_of(placement.removesuffix("_inputs"))
    renamed = {"enter.projections": "enter.streams.projections", "final.gain": "final.norm.gain"}
    shared = {
        next((name.replace(old, new) for old, new in renamed.items() if old in name), name): weight
        for name, weight in without.state_dict().items()
        if ".mlp.skip." not in name and ".mlp.branch." not in name  # Gemma 4's number, at its 1
    }
    own = {name: x for name, x in model.state_dict().items() if name not in shared}
    added = {name: torch.zeros_like(x) for name, x in own.items() if "connection.scale" not in name}
    assert any("gated" in name for name in added)
    model.load_state_dict({**own, **shared, **added})
    torch.testing.assert_close(model(some_tokens())[0], without(some_tokens())[0])


@pytest.mark.parametrize("placement", INPUTS)
def test_each_block_reads_its_own_part_of_the_table_and_of_the_projection(placement):
    model, outputs = model_of(placement), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, made: outputs.append(made[0]))
    with torch.no_grad():
        for weight in (model.enter.input_embedding.weight.mT, model.enter.input_projection.weight):
            for i in range(N):
                outputs.clear()
                model(some_tokens())
                kept = weight.clone()
                weight[i * P : (i + 1) * P] += torch.randn_like(weight[:P])
                model(some_tokens())
                weight.copy_(kept)
                moved = [not torch.equal(a, b) for a, b in zip(outputs, outputs[N:], strict=False)]
                assert moved == [n >= i for n in range(N)]


def test_the_table_is_an_embedding_to_the_optimizer_and_what_reads_and_writes_are_matrices():
    by_group = {name: {key for key, _ in own} for name, own in groups(model_of(INPUTS[1])).items()}
    assert by_group["embeddings"] == {"embedding.weight", "enter.input_embedding.weight"}
    at = "blocks.0.connection"
    matrices = {f"{at}.gated.gate.weight", f"{at}.gated.output.weight"}
    assert {"enter.input_projection.weight", *matrices} < by_group["matrices"]
    assert {"enter.norm.gain", f"{at}.gated.norm.gain", f"{at}.scale"} < by_group["norms"]
