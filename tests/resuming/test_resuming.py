"""Nightly: the command of a finished run, and each setting beside continue_from."""

import json
import resource
import subprocess
import sys

import pytest
from rank_workers import ROOT
from run_folders import tree
from short_runs import BASE, TEXT, go, here, rows, same, state, stop_at  # noqa: F401

from transformer_norms import ConfigError, compose, train

pytestmark = pytest.mark.nightly


def cpu_of_children():
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.goal("R7")
def test_the_command_of_a_finished_run_changes_no_file(here, measured):  # noqa: F811
    go()
    before, begun = tree("runs"), cpu_of_children()
    again = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *BASE], capture_output=True, text=True
    )
    seconds = cpu_of_children() - begun
    assert (again.returncode, json.loads(again.stdout)["status"]) == (0, "finished"), again.stderr
    assert tree("runs") == before
    assert seconds < 6
    measured(f"exit 0 after {seconds:.1f} s of the processor, {len(before)} files unchanged")


# Of each group of a config, and of what a choice brings.
CHANGES = """
norm=layernorm norm.eps=1e-3 placement=sandwich placement.equation=norm(x+f(x)) init.std.up=0.1
position=learned mlp.activation=gelu embed=norm qk_norm=head architecture.tied=false model.depth=2
model.dropout=0.2 seed=1 data.seed=5 data.val_tokens=400 data=stories tokenizer=bpe optimizer=muon
optimizer.lr_factor.head=2 schedule.warmup=5 trainer.batch_size=8 trainer.clip=2
""".split()


@pytest.mark.goal("R8")
def test_each_changed_setting_is_refused_beside_continue_from(measured):
    first = go()
    before = tree("runs")
    more = [f"continue_from={first['folder']}", "trainer.steps=40"]
    for change in CHANGES:
        with pytest.raises(ConfigError) as error:
            train(compose([*more, change]))
        said = str(error.value)
        assert "\n" not in said
        assert "only trainer.steps may differ; " in said, change
        assert change.partition(".")[0].partition("=")[0] in said
        assert " there and " in said
    assert tree("runs") == before
    measured(f"{len(CHANGES)} of {len(CHANGES)} changed settings refused in one line")
