"""Our GPT-2's weights in transformers' GPT-2: the same function, or there is nothing to compare."""

import torch
from torch import Tensor, nn


@torch.no_grad()
def shaken(model: nn.Module) -> None:
    """No weight equal to another, no bias 0, no gain 1: else a wrong copy could go unseen."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)


@torch.no_grad()
def copied(source: nn.Module, target: nn.Module) -> None:
    """Our GPT-2's weights in theirs, whose Conv1D holds [in, out] and q, k, v side by side."""
    from_ours, theirs = dict(source.named_parameters()), dict(target.named_parameters())
    names = {"wte.weight": "embedding.weight", "wpe.weight": "position.position.weight"}
    names |= {"ln_f.weight": "final.gain", "ln_f.bias": "final.bias"}
    for name, own in names.items():
        theirs.pop(f"transformer.{name}").copy_(from_ours.pop(own))
    for name, tensor in theirs.items():
        _, _, i, rest = name.split(".", 3)
        tensor.copy_(_of_block(from_ours, f"blocks.{i}.", rest))
    assert not from_ours, f"not copied: {', '.join(from_ours)}"


def _of_block(ours: dict[str, nn.Parameter], block: str, name: str) -> Tensor:
    module, _, end = name.rpartition(".")
    if module in ("ln_1", "ln_2"):
        sub = "attention" if module == "ln_1" else "mlp"
        return ours.pop(f"{block}{sub}.pre.{'gain' if end == 'weight' else 'bias'}")
    inside = {
        "attn.c_attn": ["attention.f.query", "attention.f.key", "attention.f.value"],
        "attn.c_proj": ["attention.f.output"],
        "mlp.c_fc": ["mlp.f.up"],
        "mlp.c_proj": ["mlp.f.down"],
    }[module]
    stacked = torch.cat([ours.pop(f"{block}{linear}.{end}") for linear in inside])
    return stacked.T if end == "weight" else stacked
