"""What a device could compute, and how much of that a run made use of."""

from types import SimpleNamespace

import pytest
import torch
from refusing import refused
from trainers import trainer_of

from transformer_norms.model.attentions.softmax import Softmax
from transformer_norms.training.accelerators import find_accelerator, peak_of
from transformer_norms.training.flops import ATTENTION, flops_per_token, training_flops, work
from transformer_norms.training.trainer import Trainer

A100 = "NVIDIA A100-SXM4-80GB"
NAMED = {  # as torch.cuda.get_device_name gives it: bf16, fp32
    **dict.fromkeys([A100, "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"], (312e12, 19.5e12)),
    "NVIDIA H100 80GB HBM3": (989e12, 67e12),
    "NVIDIA H100 PCIe": (756e12, 51e12),
    "NVIDIA H200": (989e12, 67e12),
    "NVIDIA L4": (121e12, 30.3e12),
    "NVIDIA L40S": (362e12, 91.6e12),
    "NVIDIA A10": (125e12, 31.2e12),
    "NVIDIA GeForce RTX 3090": (71e12, 35.6e12),
    "NVIDIA GeForce RTX 4090": (165e12, 82.6e12),
    "Tesla V100-SXM2-16GB": (None, 15.7e12),
    "Tesla V100-PCIE-32GB": (None, 14e12),
    "Tesla T4": (None, 8.1e12),
}
# Of other figures than the one whose name theirs begins with, or of none that is known here.
UNKNOWN = """NVIDIA A10G|NVIDIA L40|NVIDIA H100 NVL|NVIDIA H200 NVL|NVIDIA GH200 480GB
NVIDIA GeForce RTX 3090 Ti|NVIDIA GeForce RTX 4090 D|NVIDIA GeForce RTX 4090 Laptop GPU
NVIDIA A100-SXM4-40GB MIG 1g.5gb|AMD Instinct MI300X|Intel(R) Xeon(R) Processor, 2 cores"""


def test_a_devices_peak_is_its_data_sheets_and_none_is_guessed():
    unknown = UNKNOWN.replace("\n", "|").split("|")
    for name, wanted in {**NAMED, **dict.fromkeys(unknown, (None, None))}.items():
        assert (peak_of(name, "bf16"), peak_of(name, "fp32")) == wanted, name
        assert peak_of(name, "fp64") is None


def test_utilisation_is_flops_by_the_second_over_the_peak_of_all_ranks_unless_in_tf32(monkeypatch):
    def utilisation(precision, device=A100, seconds=2.0, ranks=1):
        trainer.tokens, trainer.seconds = 200_000, seconds
        trainer.ranks = SimpleNamespace(count=ranks)
        found = work(trainer, 16, device, precision)
        assert found["flops"] == 200_000 * 744e6
        return found["model_flops_utilisation"]

    trainer = trainer_of()
    monkeypatch.setattr("transformer_norms.training.flops.training_flops", lambda *_: 16 * 744e6)
    # 744e6 FLOPs a token, 200,000 tokens in 2 seconds: 74.4e12 a second of 312e12
    assert (utilisation("bf16"), utilisation("bf16", ranks=2)) == (0.2385, 0.1192)
    assert utilisation("bf16", seconds=0.0) is None is utilisation("bf16", "some CPU")
    assert torch.get_float32_matmul_precision() == "highest"  # nothing here turns TF32 on
    assert utilisation("fp32") == 3.8154
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert (utilisation("fp32"), utilisation("bf16")) == (None, 0.2385)


def test_to_count_flops_leaves_what_is_compiled_to_be_compiled():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    product = torch.compile(lambda x: x @ torch.ones(2, 3), backend=backend)
    trainer = object.__new__(Trainer)
    trainer.model = torch.nn.Identity()
    trainer.batches = lambda step: torch.ones(1, 5).long()
    trainer.loss = SimpleNamespace(sum=lambda tokens: product(torch.ones(4, 2)).sum())
    assert flops_per_token(trainer, 4) == 3 * (2 * 4 * 2 * 3) / 4
    assert not graphs
    product(torch.ones(4, 2))
    assert graphs


VARIANTS = ["norm=layernorm", "norm=rmsnorm", "norm=gatednorm", "placement=qk_cap"]
VARIANTS += ["trainer.activation_checkpointing=true"]
SIZES = ["model.width=64", "model.heads=2", "model.depth=2", "model.mlp_width=256"]


@pytest.mark.goal("Q5")
@pytest.mark.parametrize("variant", VARIANTS)
def test_flops_are_two_for_each_weight_and_pair_of_tokens_forward_and_four_backward(variant):
    """Fused attention or not, for a norm its matrices, and nothing that is computed again."""
    width, mlp, context, vocabulary, depth = 64, 256, 16, 31, 2
    trainer = trainer_of(*SIZES, variant)
    weights = depth * (4 * width * width + 2 * width * mlp) + width * vocabulary
    weights += (2 * depth + 1) * 2 * 16 * width if variant == "norm=gatednorm" else 0
    pairs = depth * 2 * context * width  # of one token, q k^T and the weights times v
    assert flops_per_token(trainer, context) == 3 * 2 * (weights + pairs)
    assert trainer.model.training


def test_flops_of_latents_are_those_of_their_matrices_and_sizes():
    """Two for each weight and each number of a key or a value, forward and four backward."""
    d, heads, q_rank, kv_rank, rope_dim, value_dim, context = 64, 2, 24, 12, 8, 20, 16
    sizes = {"q_rank": q_rank, "kv_rank": kv_rank, "rope_dim": rope_dim, "value_dim": value_dim}
    typed = [*SIZES, *(f"architecture.{key}={size}" for key, size in sizes.items())]
    head_dim = d // heads
    attention = d * (q_rank + kv_rank + rope_dim) + q_rank * heads * head_dim
    attention += kv_rank * heads * (head_dim - rope_dim + value_dim) + heads * value_dim * d
    weights = 2 * (attention + 2 * d * 256) + d * 31
    pairs = 2 * context * heads * (head_dim + value_dim)
    assert flops_per_token(trainer_of(*typed), context) == 3 * 2 * (weights + pairs)


def test_what_a_subclass_of_softmax_computes_besides_is_counted():
    heads, time, head_dim = 2, 6, 4
    width = heads * head_dim

    class WithMatrix(Softmax):
        def forward(self, q, k, v, x):
            return super().forward(q, k, v, x) + (x @ torch.ones(width, width)).view_as(q)

    attention = WithMatrix(scale=0.5, cap=None, dropout=0.0)
    q, x = torch.randn(1, heads, time, head_dim), torch.randn(1, time, width)
    pairs = 2 * 2 * heads * time * time * head_dim  # q k^T and the weights times v
    matrix = 2 * time * width * width
    assert training_flops(lambda q: attention(q, q, q, x), q) == 3 * (pairs + matrix)


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_a_gpus_kernels_are_counted_as_a_processors(kernel):
    q, k, v = (2, 3, 8, 4), (2, 3, 6, 4), (2, 3, 6, 5)
    count = ATTENTION[getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")]
    assert count(q, k, v, None, True, out_shape=()) == 2 * (2 * 3 * 8 * 6) * (4 + 5)


def test_an_accelerator_has_its_data_sheets_memory_and_an_unknown_one_the_nearest_name():
    for name, memory in {"H100 SXM": 80e9, "A100 PCIe 40GB": 40e9, "T4": 16e9}.items():
        assert find_accelerator(name.lower()).memory == memory
    for typed, near in [
        ("h100 sxn", "H100 SXM"), ("H100", "H100 SXM"), ("A100 SXM 80", "A100 SXM 80GB"),
        ("4090", "RTX 4090"),
    ]:  # fmt: skip
        line = refused(find_accelerator, typed)
        assert typed in line
        assert f"'{near}'" in line
