"""What `python -m transformer_norms.plan` says, against closed forms and torch's own counters."""

import json

import pytest

from transformer_norms.plan.__main__ import main

GPT2 = ("preset=gpt2", "model=base", "tokenizer=gpt2")


def planned(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_gpt2s_parameters_and_flops_are_those_of_its_sizes(capsys):
    plan = planned(capsys, *GPT2)
    d, t, v, n = 768, 1024, 50257, 12
    block = 12 * d * d + 13 * d  # q, k, v, output and mlp; their biases, two norms of 2 d
    assert plan["parameters"]["all"] == v * d + t * d + n * block + 2 * d == 124_439_808
    assert plan["flops_per_token"] == 3 * 2 * (12 * n * d * d + v * d + n * 2 * t * d)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--accelerator", "H100 SXN"), "did you mean 'H100 SXM'?"),
        (("norm=rmsnrm",), "did you mean 'rmsnorm'?"),
        (("--price", "2.5"), "needs --accelerator"),
        (("--fit", "bach", "--accelerator", "L4"), "it is batch or devices"),
        (("--utilisation", "40"), "at most 1"),
        (("--devices", "0"), "at least 1"),
        (("trainer.precision=bf16", "--accelerator", "T4"), "it has fp32"),
        (("--accelerator", "L4", "--price", "a lot"), "one number is wanted"),
        (("sweep=placement_124m",), "did you mean 'placements_124m'?"),
    ],
)
def test_a_wrong_plan_is_answered_in_one_line(capsys, arguments, said):
    assert said in refused(capsys, *arguments)
