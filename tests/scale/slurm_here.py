"""A real Slurm of one node, on loopback, with its own folders, keys and ports, for one `with`.

It needs root, since its daemons start processes as other users. Nothing of the system's own Slurm
is read. The daemons are ended by their process ids.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
CEILING = 600  # seconds, for a machine that is busy with other things

# A job that was put into the queue again waits until its credentials have expired. What Slurm does
# now and then, it does every second here.
CONFIG = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,sched_interval=1,bf_interval=1
KillWait=5
MinJobAge=10
NodeName=here NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 Port={node}
PartitionName=debug Nodes=here Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here; '' if there can."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
    if missing:
        return f"no {missing[0]} here; apt-get install --no-install-recommends slurm-wlm munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


@contextmanager
def slurm_here() -> Iterator[dict[str, str]]:
    """Yields the environment in which Slurm's commands find this Slurm."""
    with ExitStack() as stack:
        # munge's socket has a short path, and its folder belongs to root alone.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp"))
        here = Path(folder)
        here.chmod(0o755)
        for name in ("state", "spool"):
            (here / name).mkdir()
        key = here / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        config = here / "slurm.conf"
        ports = dict(zip(("controller", "node"), free_ports(2), strict=True))
        config.write_text(CONFIG.format(host=socket.gethostname(), folder=here, **ports))
        files = {"key-file": key, "socket": here / "munge.sock", "pid-file": here / "munge.pid",
                 "log-file": here / "munge.log", "seed-file": here / "munge.seed"}  # fmt: skip
        options = [f"--{name}={file}" for name, file in files.items()]
        environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(config)}
        daemons = [
            ["munged", "--force", "--foreground", *options],
            ["slurmctld", "-D", "-c", "-f", str(config)],
            ["slurmd", "-D", "-N", "here", "-f", str(config)],
        ]
        for command in daemons:
            with open(here / f"{command[0]}.out", "w") as out:
                process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
            stack.callback(_end, process)
            wait_until(files["socket"].exists, here)  # of munged, which is the first
        wait_until(lambda: "idle" in ask(environment, "sinfo", "--noheader", "-o", "%T"), here)
        stack.callback(_end_jobs, environment, here)  # before the daemons end
        yield environment


def ask(environment: dict[str, str], *command: str) -> str:
    """Returns what a command of Slurm prints, or '' if it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def wait_until(condition, here: Path | None = None) -> None:
    deadline = time.monotonic() + CEILING
    while not condition():
        if time.monotonic() > deadline:
            logs = [file.read_text()[-3000:] for file in here.glob("*.log")] if here else []
            raise AssertionError("\n".join(["waited too long", *logs]))
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_jobs(environment: dict[str, str], here: Path) -> None:
    ask(environment, "scancel", "--user=root")
    wait_until(lambda: not ask(environment, "squeue", "--noheader"), here)
