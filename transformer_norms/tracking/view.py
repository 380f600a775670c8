"""Shows a folder as one W&B run: a run folder with its rows as they come, or a study's report.

Live mirroring and `sync` are the same function. It writes a view whole, from the folder.
"""

import hashlib
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import wandb

from transformer_norms import processes
from transformer_norms.comparison.sweep_record import PlannedRun, SweepRecord, label, read_record
from transformer_norms.errors import Busy, ConfigError, describe_error
from transformer_norms.run.failure import failure
from transformer_norms.run.folder import Attempts, state_of
from transformer_norms.run.identity import digest
from transformer_norms.run.metrics import parse_row
from transformer_norms.run.reader import SavedRun, run_folders
from transformer_norms.run.summary import ENDED, Summary, read_summary
from transformer_norms.storage.files import as_storage_error, preflight
from transformer_norms.storage.locks import take_lock
from transformer_norms.storage.manifest import MANIFEST
from transformer_norms.storage.reading import open_file, read_text
from transformer_norms.tracking import PROJECT
from transformer_norms.tracking.wishes import wishes
from transformer_norms.training.measures import PREFIX

_INIT_SECONDS = 20
_UPLOAD_SECONDS = 300
_LEAST_SPACE = 1 << 20  # bytes: on a full disk W&B would print tracebacks
_LONGEST_TAG = 64
_OWN_DATA_DIR = "WANDB_DATA_DIR" not in os.environ
_IN_LOG = {"train/loss": "loss", "val/loss": "val", "test/loss": "test"}
_NO_MACHINE = {"x_disable_meta": True, "x_disable_stats": True, "x_save_requirements": False,
               "disable_git": True, "disable_code": True, "save_code": False}  # fmt: skip
Showing = Generator[None, None, int | None]
_failures: list[Exception] = []  # of this process to begin a W&B run


def show_folder(
    folder: Path, mode: str, no_more: Callable[[], bool], typed: Mapping[str, Any] = {}
) -> Showing:
    """Shows a run folder, or the report of a study, as one W&B run. Yields when it has shown what
    there is and more may come, until the run has ended or `no_more` says so. Returns the last step
    of a run, and -1 where there is none. `typed` keys of tracking=wandb go before those of the run,
    which has the ones that it began with.

    One process at a time shows a folder. Raises Busy if there is `no_more` to wait for, and another
    process shows it.
    """
    is_run = (folder / "metrics.jsonl").is_file()
    study, name = (folder.parent, folder.name) if is_run else (folder, "report")
    home = study / "wandb"
    home.mkdir(exist_ok=True)
    key = hashlib.sha256(f"{study.name}/{name}".encode()).hexdigest()[:16]
    file = home / f"{key}.lock"
    file.touch()
    while (lock := take_lock(file)) is None:
        if no_more():
            raise Busy("another process is mirroring it")
        yield
    if processes.has_agent():
        key = os.environ["WANDB_RUN_ID"]
    with lock:
        if is_run:
            return (yield from _show_run(folder, key, mode, no_more, typed))
        _show_report(folder, key, mode, typed)
    return -1


def problem_of(error: Exception, folder: Path) -> tuple[str, int]:
    """Returns why a folder could not be shown, in one line, and the exit code that says so."""
    known = as_storage_error(error, folder) or error
    return describe_error(known), getattr(known, "exit_code", 1)


def _show_run(
    folder: Path, key: str, mode: str, no_more: Callable[[], bool], typed: Mapping[str, Any]
) -> Showing:
    step = None
    while step is None:  # the rows are written again where a run goes back to a checkpoint
        with (
            open_file(folder / "metrics.jsonl") as rows,
            _wandb_run(folder.parent, key, mode, **opening(SavedRun(folder), typed)) as run,
        ):
            step = yield from _show_rows(folder, rows, run, no_more)
            saved = SavedRun(folder)
            if step is not None:
                _show_end(saved, run, step, typed)
        run.finish(exit_code=0 if saved.summary.status in ENDED else 1)
    return step


def _show_rows(
    folder: Path, rows: BufferedReader, run: Any, no_more: Callable[[], bool]
) -> Showing:
    """Logs each row. Returns the last step, or None if the run has replaced its `rows`."""
    file, done, step = folder / "metrics.jsonl", False, -1
    hidden: set[str] = set()
    while not done:
        done = no_more() or _has_ended(folder)  # before the rows are read that are there
        if not os.path.samestat(os.fstat(rows.fileno()), file.stat()):
            return None
        while (line := rows.readline()).endswith(b"\n"):
            row = parse_row(line, str(file))
            step = row.pop("step")
            # A null marks a number that is not finite.
            row = {key: v for key, v in row.items() if v is not None and key != "nonfinite"}
            # Keys are named in full: where two patterns match a key, W&B takes either.
            for key in {key for key in row if key.startswith(f"{PREFIX}/")} - hidden:
                run.define_metric(key, step_metric="tokens", hidden=True)
                hidden.add(key)
            run.log(row, step=step)
            losses = [f"{name} {row[key]:.4f}" for key, name in _IN_LOG.items() if key in row]
            if losses:
                run.write_logs("  ".join([f"step {step}", *losses]))
        rows.seek(-len(line), os.SEEK_CUR)
        if not done:
            yield
    return step


def _has_ended(folder: Path) -> bool:
    """A result's curve is drawn after its last summary is written."""
    if (summary := read_summary(folder)) is None:
        return False
    stopped = summary.status in ("failed", "preempted")
    return stopped or (summary.ended and (folder / "curve.svg").is_file())


def _show_end(saved: SavedRun, run: Any, step: int, typed: Mapping[str, Any]) -> None:
    """Shows what a run has after its rows: its curve, its totals and its model."""
    summary, curve = saved.summary, saved.folder / "curve.svg"
    if summary.ended and curve.is_file():
        run.log({"view/curve": _drawing(curve)}, step=step + 1)
    run.write_logs("\n".join(_last_lines(summary)))
    keeps = {**saved.config["tracking"], **typed}.get("model") == "final"
    if keeps and saved.finished and (model := _model_artifact(saved, run.id)):
        run.log_artifact(model, aliases=["final", f"step-{step}"])
    run.summary.update(totals(summary))


def totals(summary: Summary) -> dict[str, Any]:
    values = {k: v for k, v in summary.values().items() if isinstance(v, (str, int, float))}
    if summary.ended:  # a number: its mean over a group is the share
        values["final/diverged"] = int(summary.status == "diverged")
    return values


def _show_report(study: Path, key: str, mode: str, typed: Mapping[str, Any]) -> None:
    asked = wishes(typed, os.environ)
    for folder in run_folders(study)[:1]:  # one command gives all runs the same
        with suppress(ConfigError):
            asked = wishes({**SavedRun(folder).config["tracking"], **typed}, os.environ)
    fields: dict[str, Any] = {
        "asked": asked | {"name": study.name},
        "job_type": "report",
        "notes": " ".join(dict.fromkeys(one.question for one in _records(study))) or None,
        "config": {"study": study.name, "stage": "report"},
    }
    with _wandb_run(study, key, mode, **fields) as run:
        page, curves = read_text(study / "report.html"), study / "curves.svg"
        pictures = {"view/report": wandb.Html(page, inject=False, data_is_not_path=True)}
        if curves.is_file():
            pictures["view/curves"] = _drawing(curves)
        run.log(pictures, step=0)
    run.finish(exit_code=0)


@contextmanager
def _wandb_run(
    study: Path,
    key: str,
    mode: Any,
    asked: Mapping[str, str],
    command: Sequence[str] = (),
    settings: Mapping[str, Any] = _NO_MACHINE,
    **fields: Any,
) -> Iterator[Any]:
    """Begins a W&B run, which replaces all that W&B holds under its id. An error during the `with`
    ends it. `command` has the words of the command; `settings` are W&B's of machine and code."""
    if _failures and mode == "online":  # nothing waits for W&B's server again
        raise ConnectionError("W&B was not reached before")
    home = study / "wandb"
    preflight(home, _LEAST_SPACE)
    for part in home.glob(f"*run-*-{key}"):
        shutil.rmtree(part, ignore_errors=True)
    if _OWN_DATA_DIR:  # W&B keeps tables there until they are uploaded; the default is ~
        os.environ["WANDB_DATA_DIR"] = str(home)
    os.environ.pop("WANDB_RESUME", None)  # which would go on where the old run ends
    os.environ["WANDB_MODE"] = mode  # else W&B's telemetry connects when `init` is told offline
    ours, sys.argv = sys.argv, [*command] or sys.argv  # W&B shows the words of sys.argv
    try:
        run = wandb.init(
            project=asked.get("project") or PROJECT,
            entity=asked.get("entity"),
            name=asked["name"],
            id=key,
            reinit="create_new",  # else wandb.init returns a run that is open already
            group=asked.get("group") or study.name,
            dir=study,
            mode=mode,
            **fields,
            settings=wandb.Settings(
                silent=True,
                console="off",
                symlink=False,
                init_timeout=_INIT_SECONDS,
                finish_timeout=_UPLOAD_SECONDS,
                finish_timeout_raises=True,
                **settings,
            ),
        )
    except Exception as error:
        _failures.append(error)
        raise
    finally:
        sys.argv = ours
    try:
        run.define_metric("*", step_metric="tokens")
        yield run
    except BaseException:
        with suppress(Exception):
            run.finish(exit_code=1)
        raise


# ----------------------------------------------------------------------------- what a run is called


def opening(saved: SavedRun, typed: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Returns the arguments of a W&B run. Its config has keys to group by (`variant`, `stage`, ...)
    and the run's own keys."""
    summary = saved.summary
    asked = wishes({**saved.config["tracking"], **typed}, os.environ)
    plan, record = _plan_of(saved) or (None, None)
    stage = plan.stage if plan else "train"
    groups = {
        "variant": label(plan.variant) if plan else _variant_of(saved),
        "stage": stage,
        "identity": summary.identity,
        "commit": summary.commit,
        "versions": summary.versions,
    }
    choices = [f"{axis}={value}" for axis, value in saved.config["choices"].items()]
    tags = [*choices, *asked.get("tags", "").split(",")]
    command = shlex.split(str(summary.process.get("command", "")))
    return {
        "asked": {"name": saved.folder.name} | asked,
        "job_type": stage,
        "tags": [*map(_tag, filter(None, dict.fromkeys(tags)))],
        "notes": asked.get("notes") or (record.question if record else None),
        "config": {**saved.config, **groups},
        "command": command,
        "settings": _machine(summary) | ({"program": command[0]} if command else {}),
    }


def _machine(summary: Summary) -> dict[str, Any]:
    """Returns W&B's settings of the machine and the code. W&B measures the process that trains,
    while there is one on this machine. Later the host and the commit of the record are all that is
    known for certain."""
    process, host = summary.process.get("pid"), summary.process.get("host")
    shown = {**_NO_MACHINE, "host": host}
    if summary.commit:
        shown |= {"disable_git": False, "git_commit": summary.commit}
        shown |= {"git_root": str(Path(__file__).parents[2])}
    if process and host == socket.gethostname() and state_of(summary) == "running":
        del shown["disable_code"], shown["save_code"]  # the environment decides
        shown |= {"x_disable_meta": False, "x_disable_stats": False, "x_stats_pid": process}
        shown |= {"x_save_requirements": True}
    return shown


def _plan_of(saved: SavedRun) -> tuple[PlannedRun, SweepRecord] | None:
    """Returns a sweep's plan of the run, and the sweep. A plan of a result goes before another
    sweep's plan of a tuning run."""
    study, identity = saved.folder.parent, saved.summary.identity
    folders = Attempts(study)
    plans = [
        (plan, record)
        for record in _records(study)
        for plan in record.runs
        if plan.identity == identity and saved.folder in plan.attempts(folders)
    ]
    return min(plans, key=lambda plan: plan[0].stage != "result", default=None)


def _records(study: Path) -> Iterator[SweepRecord]:
    for path in sorted(study.glob("sweep-*.json")):
        with suppress(ConfigError):  # an unreadable record keeps no run from W&B
            yield read_record(path)


def _variant_of(saved: SavedRun) -> str:
    """Names a run that no sweep planned without its seed, and with a hash of all other keys, so
    that a group differs in nothing but seeds: `rmsnorm-post-tiny-3f2a`."""
    name = re.sub(r"(-s\d+)?-[0-9a-f]{8}(-from-\w+)?(-\d+)?$", "", saved.folder.name)
    return f"{name}-{digest(saved.settings)[:4]}"


def _tag(text: str) -> str:
    """Cuts a long text, such as a typed equation, and ends it with a hash, so that tags differ."""
    return text if len(text) <= _LONGEST_TAG else f"{text[: _LONGEST_TAG - 5]}~{digest(text)[:4]}"


# ------------------------------------------------------------------------- what a run ends with


def _last_lines(summary: Summary) -> list[str]:
    lines = [f"warning: {line}" for line in summary.warnings]
    if summary.diverged:
        lines.append(f"diverged: {summary.diverged}")
    elif summary.status == "finished" and (why := failure(summary, "val_loss")):
        lines.append(f"failed to train: {why}")
    losses = [f"{name} {getattr(summary, name):.4f}" for name in ("val_loss", "test_loss")
              if getattr(summary, name) is not None]  # fmt: skip
    lines += [summary.error] if summary.error else []
    return [*lines, "  ".join([f"{summary.status} at step {summary.step}", *losses])]


def _drawing(svg: Path) -> Any:
    """A drawing as a page, without the head of an XML file: W&B's own images are pixels."""
    page = "".join(read_text(svg).partition("<svg")[1:])
    return wandb.Html(page, inject=False, data_is_not_path=True)


def _model_artifact(saved: SavedRun, name: str) -> Any:
    """Returns an artifact that loads as the run does: its files without rows and optimizer. W&B
    reads the weights where they lie, and copies the rest. None: the run has no checkpoint."""
    from transformer_norms.run import checkpoint  # imports torch

    folder, summary = saved.folder, saved.summary
    newest = checkpoint.newest(folder / "checkpoints", summary.identity, lambda line: None)
    if newest is None:
        return None
    about = {"run": folder.name, "step": newest.step, "val_loss": summary.val_loss}
    artifact = wandb.Artifact(f"model-{name}", type="model", metadata=about)
    for file in ("config.yaml", "tokenizer.json", "summary.json"):
        artifact.add_file(str(folder / file))
    for file in ("state.json", "model.safetensors", MANIFEST):
        path = newest.path / file
        artifact.add_file(str(path), str(path.relative_to(folder)), policy="immutable")
    return artifact
