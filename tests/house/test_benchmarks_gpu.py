"""The GPU benchmark counts what it says, and each section costs only itself when it fails."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu
import gpu_digits
import gpu_peers
import gpu_steps
import pytest
import torch
from contenders import Size, ours, parameters
from gpu_section import PRODUCT, Section, read_numbers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.compose import compose
from transformer_norms.names import distinct_norms, options

ROOT = Path(__file__).parents[2]
FULL = Size(12, 768, 1024, 16, 50257)
PADDING = (50304 - 50257) * 768  # weights of the rows that fill the vocabulary
TIMES = {"block": [0.5, 0.25, 0.5], "transformers": [1.0, 1.0, 2.0], "nanoGPT": [0.75, 0.75, 0.25]}


@pytest.fixture
def section(tmp_path):
    return Section("steps", "cpu", True, str(tmp_path), time.time() + 600)


@pytest.mark.parametrize("name", gpu_peers.PEERS)
def test_a_peer_has_our_parameters_at_full_size_and_those_of_its_padding(name):
    typed = "norm=rmsnorm_np" if name == "modded-nanogpt" else "preset=gpt2"
    config = compose([*FULL.overrides(), typed])
    with torch.device("meta"):
        own = parameters(build_uninitialized(config, FULL.vocabulary))
        found = parameters(gpu_peers.PEERS[name].build(FULL))
    assert found == gpu_peers.PEERS[name].parameters(FULL)
    assert found == own + PADDING * (name != "transformers")


def test_a_peer_with_other_parameters_is_not_timed(section, monkeypatch):
    peer = gpu_peers.PEERS["nanoGPT"]._replace(parameters=lambda size: 10)
    monkeypatch.setitem(gpu_steps.PEERS, "nanoGPT", peer)
    gpu_steps.compare(section, section.size(), ["nanoGPT"])
    (line,) = read_numbers(section.folder)
    assert line["error"].startswith("Unlike: it has 1")


@pytest.mark.parametrize("name", ["ours", *gpu_peers.PEERS])
def test_the_flops_of_a_token_are_three_times_those_counted_forward(name):
    size = Size(2, 64, 32, 3, 128)
    own = ours(size, ["preset=gpt2", "trainer.threads=1"], size.batches()).model
    model = own if name == "ours" else gpu_peers.PEERS[name].build(size)
    # torch counts this kernel as the two products that it computes over all pairs of positions.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(size.batches()(0)[:, :-1])
    tokens = size.batch * size.context
    assert 3 * counter.get_total_flops() == gpu_steps.flops_per_token(size) * tokens


def test_a_rotated_vector_is_a_normalized_one_times_a_complex_unit():
    rotation = gpu_peers.Rotation(5, 6)
    x = torch.randn(2, 3, 5, 6)
    y = x * math.sqrt(6) / x.norm(dim=-1, keepdim=True)
    found = rotation(x)
    for j in range(3):
        turns = torch.exp(-1j * torch.arange(5) * 10000.0 ** (-j / 3))
        expected = torch.complex(y[..., j], y[..., j + 3]) * turns
        torch.testing.assert_close(torch.complex(found[..., j], found[..., j + 3]), expected)


@pytest.mark.parametrize("name", ["nanoGPT", "modded-nanogpt"])
def test_a_peer_sees_no_later_token(name):
    size = Size(1, 64, 8, 1, 97)
    model, tokens = gpu_peers.PEERS[name].build(size), size.batches()(0)[:, :-1]
    other = tokens.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 97
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_contenders_that_are_not_built_in_time_are_named_and_the_others_timed(section, monkeypatch):
    left = iter([gpu_steps.TURNS + 1, gpu_steps.TURNS - 1, gpu_steps.TURNS - 1])
    monkeypatch.setattr(Section, "left", property(lambda section: next(left)))
    monkeypatch.setattr(gpu_steps, "build", lambda *arguments: lambda: None)
    gpu_steps.compare(section, FULL, ["nanoGPT", "modded-nanogpt"])
    first, second = read_numbers(section.folder)
    assert first["what"] == "modded-nanogpt"
    assert first["error"] == "TimeoutError: left out for lack of time"
    assert second["what"] == "nanoGPT, by turns"


def test_a_contender_by_turns_has_its_rate_its_share_of_the_peak_and_ratios(section, monkeypatch):
    monkeypatch.setattr(gpu_steps, "build", lambda section, kind, size: lambda: None)
    monkeypatch.setattr(gpu_steps, "by_turns", lambda *arguments: TIMES)
    monkeypatch.setattr(gpu_steps, "write_profile", lambda *arguments: None)
    section.say(PRODUCT, rate=0.5)  # TFLOP/s
    gpu_steps.compare(section, FULL, TIMES)
    lines = {line["what"]: line for line in read_numbers(section.folder)}
    block = lines["block, by turns"]
    assert block["times_as_fast_as"] == {"transformers": 4.0, "nanoGPT": 1.5}
    assert block["tokens_a_second"] == 16 * 1024 / 0.5
    used = 16 * 1024 / 0.5 * gpu_steps.flops_per_token(FULL) / 0.5e12
    assert block["mfu"] == {"nominal": None, "measured": pytest.approx(used, rel=1e-4)}
    assert lines["nanoGPT, by turns"]["times_as_fast_as"]["nanoGPT"] == 1.0


def test_every_norm_and_placement_is_a_variant_and_25_placements_come_first():
    variants = [dict(word.split("=") for word in one.split()) for one in gpu_steps.every_variant()]
    assert len({one["placement"] for one in variants[:25]}) == 25
    assert {one["placement"] for one in variants} == set(options("placement"))
    norms = {one["norm"] for one in variants if one["placement"] == "pre"}
    assert norms == set(distinct_norms()) - {"batchnorm"}


def test_other_digits_of_a_second_training_are_reported(section, monkeypatch):
    digits = iter(range(100))
    monkeypatch.setattr(gpu_digits, "digits", lambda section, variant: next(digits) // 3)
    gpu_digits.compare_variants(section)
    (line,) = read_numbers(section.folder)
    same, unequal = gpu_steps.every_variant()[:2]
    assert (line["same"], line["unequal"]) == (1, [unequal])


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ("112", {"two_cold_caches_alike": True, "cold_and_warm_alike": False, "losses": 1}),
        ("121", {"two_cold_caches_alike": False, "cold_and_warm_alike": True, "losses": 1}),
        ("11x", {"error": "a process that trained ended with code 1"}),
    ],
)
def test_digits_of_cold_and_warm_caches_are_compared(section, monkeypatch, endings, expected):
    def begin(section, mode, cache):
        code = f"print('{{\"losses\": ' + str(int('{next(losses)}')) + '}}')"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-S", "-c", code], **pipes, text=True)

    losses = iter(endings)
    monkeypatch.setattr(gpu_digits, "begin", begin)
    for name in "compare_norms", "compare_variants":
        monkeypatch.setattr(gpu_digits, name, lambda section: None)
    gpu_digits.measure_digits(section)
    (line,) = read_numbers(section.folder)
    assert line == {"section": "steps", "what": "trainer.compile=whole", **expected}


def test_all_limits_together_are_at_most_ten_minutes():
    assert sum(planned.seconds for planned in gpu.PLAN.values()) <= 600
    assert gpu.parser().parse_args([]).budget <= 600


PLANNED = {
    "fails": (5, "print('a number'); raise SystemExit('no memory')"),
    "hangs": (0.5, "import time; time.sleep(60)"),
    "works": (5, "pass"),
}


def test_a_section_that_fails_or_runs_over_its_limit_costs_itself_alone(tmp_path, monkeypatch):
    plan = {name: gpu.Planned(seconds, print) for name, (seconds, _) in PLANNED.items()}
    monkeypatch.setattr(gpu, "PLAN", plan)
    monkeypatch.setattr(gpu, "PATIENCE", 1)
    monkeypatch.setattr(
        Section, "command", lambda section: [sys.executable, "-c", PLANNED[section.name][1]]
    )
    begun, typed = time.monotonic(), ["--device", "cpu", "--tiny", "--out", str(tmp_path / "out")]
    assert gpu.main(typed) == 1
    assert time.monotonic() - begun < 50  # the one that hangs was not waited for
    record = json.loads((tmp_path / "out" / "gpu.json").read_text())
    ended = [record["sections"][name]["ended"] for name in PLANNED]
    assert ended == ["failed: no memory", "ran over its limit", "finished"]
    assert {"date", "device", "versions", "commit", "command", "numbers"} <= record.keys()
    monkeypatch.setattr(gpu, "PLAN", {"late": gpu.Planned(5, print)})
    monkeypatch.setattr(gpu, "LEAST", 1e9)
    monkeypatch.setattr(gpu, "check", lambda typed: None)
    assert gpu.main(typed) == 1
    record = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert record["sections"] == {"late": {"ended": "left out for lack of time"}}


@pytest.mark.nightly
def test_a_rehearsal_on_a_cpu_finishes_every_section_without_an_error(tmp_path):
    (tmp_path / "wandb.py").write_text("raise SystemExit('wandb was imported')")
    paths, out = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")], tmp_path / "out"
    own = {"PYTHONPATH": os.pathsep.join(paths), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    typed = ["--device", "cpu", "--tiny", "--budget", "1700", "--out", str(out)]
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *typed]
    done = subprocess.run(command, env=os.environ | own)
    record = json.loads((out / "gpu.json").read_text())
    ended = {name: one["ended"] for name, one in record["sections"].items()}
    assert ended == dict.fromkeys(gpu.PLAN, "finished")
    assert done.returncode == 0
    assert {line["section"] for line in record["numbers"]} == set(gpu.PLAN)
    assert [line for line in record["numbers"] if "error" in line or line.get("exit")] == []
