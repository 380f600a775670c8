"""X9: no command and no test needs a network, and none asks for one."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from guide import ROOT
from test_secrets import TINY

TRAIN, ELSE = [str(ROOT / "train.py"), *TINY], ["-m", "transformer_norms"]
POOL = ["-m", "norm=rmsnorm,layernorm", "seed=0,1", "launcher=pool", "launcher.workers=2"]
TESTS = ("data_split", "tracking_folders", "sample")  # files, of all that there are
COMMANDS = {
    "a run": [*TRAIN, "tracking=none"],
    "a sample": [*ELSE, "sample", "rmsnorm-pre", "--tokens", "4"],
    "a run that is mirrored": [*TRAIN, "tracking=wandb", "study=mirrored"],
    "a run of two processes": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                               *TRAIN, "tracking=none", "parallel=ddp", "study=ranks"],
    "a sweep in a pool": [*TRAIN, "tracking=none", "study=swept", *POOL],
    "a report": [*ELSE, "report", "runs/swept"],
    "a list": [*ELSE, "runs", "runs/swept"],
    "an explanation": [*ELSE, "explain", "norm=dyt"],
    "tests": ["-m", "pytest", "-n", "0", *(
        str(file)
        for name in TESTS
        for file in (ROOT / "tests").glob(f"*/test_{name}.py")
    )],
}  # fmt: skip
# Only a namespace that has a loopback and nothing else, and a trace of what is asked of it.
INSIDE = (
    'ip link set lo up && exec strace -f -qq --seccomp-bpf -e signal=none -o "$TRACE" '
    '-e trace=connect,sendto,sendmsg "$@"'
)
OUTSIDE = re.compile(r"sa_family=AF_INET6?,(?!.*(127\.0\.0\.1|\"::1\"))")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs Python in a folder without a network. Returns its exit code and what it asked for."""
    here = tmp_path_factory.mktemp("alone")
    namespace = ["unshare", "-n"] if os.getuid() == 0 else ["unshare", "-rn"]
    tools = [name for name in ("unshare", "strace", "ip") if shutil.which(name) is None]
    if tools or subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"no network namespace here: {', '.join(tools) or 'not permitted'}")
    asking = ("HF_", "WANDB_", "TRANSFORMERS_")  # nothing says beforehand that there is no network
    kept = {name: value for name, value in os.environ.items() if not name.startswith(asking)}
    kept |= {"PYTHONPATH": str(ROOT), "HOME": str(here), "OMP_NUM_THREADS": "1"}

    def run(arguments: list[str]) -> tuple[int, list[str], str]:
        trace = here / "trace"
        done = subprocess.run(
            [*namespace, "sh", "-c", INSIDE, "sh", sys.executable, *arguments],
            cwd=here, env={**kept, "TRACE": str(trace)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        asked = [line for line in trace.read_text().splitlines() if OUTSIDE.search(line)]
        return done.returncode, asked, done.stdout + done.stderr

    return run


def test_the_trace_sees_who_asks_for_a_network(alone):
    ask = "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError: pass"
    code, asked, said = alone(["-c", ask])
    assert (code, len(asked)) == (0, 1), said


@pytest.mark.goal("X9")
@pytest.mark.nightly
def test_nothing_needs_a_network_and_nothing_asks_for_one(alone, measured):
    for name, arguments in COMMANDS.items():
        code, asked, said = alone(arguments)
        assert code == 0, (name, said[-2000:])
        if "torch.distributed.run" in arguments:  # whose store looks up the name of 127.0.0.1
            asked = [line for line in asked if "sin_port=htons(53)" not in line]
        assert asked == [], (name, asked[:5])
    commands, files = len(COMMANDS) - 1, len(TESTS)
    measured(f"{commands} commands and {files} files of tests, 0 attempts to connect")
