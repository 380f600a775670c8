"""Trains one run of a config in its folder, from the command to its final summary.

`train` finds the folder, and returns the summary of a run that has ended already. `Run` locks the
folder, builds a trainer, restores the newest checkpoint, and lets the trainer work until it ends or
a signal comes.
"""

import importlib
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import torch

from transformer_norms import processes
from transformer_norms.config.building import build_batches, build_trainer
from transformer_norms.config.tree import Config, check_config, diff
from transformer_norms.data.batches import windows
from transformer_norms.errors import (
    BEGAN,
    ConfigError,
    LostRank,
    NoUsableCheckpoint,
    StorageError,
    describe_error,
    hide_secrets,
)
from transformer_norms.progress import Live, say
from transformer_norms.run import checkpoint, machine
from transformer_norms.run.beginning import check_ranks, model_of, prepare_model, write_beginning
from transformer_norms.run.curve import draw_curve
from transformer_norms.run.failure import failure
from transformer_norms.run.folder import hold_run, path_text
from transformer_norms.run.identity import kind_of_kernels
from transformer_norms.run.metrics import finite_or_none, read_metrics
from transformer_norms.run.plan import Plan
from transformer_norms.run.record import Record
from transformer_norms.run.summary import ENDED, Data, Status, Summary, read_summary
from transformer_norms.signals import Preempted, Stopping
from transformer_norms.storage.files import make_folder, remove_leftovers
from transformer_norms.storage.reading import is_there
from transformer_norms.training.divergence import Overflowed
from transformer_norms.training.flops import work
from transformer_norms.training.graphs.compiling import share_kernels
from transformer_norms.training.loss import Batch, ModelLoss
from transformer_norms.training.parallel.ranks import ALONE, join
from transformer_norms.training.parallel.stacks import StackedLoss
from transformer_norms.training.trainer import Trainer

Follow = Callable[[Path], None]
Finish = Callable[[], None]
MakeLoss = Callable[..., ModelLoss]
NEEDS = ("model", "optimizer")  # what training goes on from


def train(
    config: Config,
    follow: Follow = lambda folder: None,
    weights_only: bool = False,
    finish: Finish = lambda: None,
    stopping: Stopping | None = None,
    loss: MakeLoss = ModelLoss,
) -> dict[str, Any]:
    """Trains the run of a composed config, or goes on with it, or finds it done. Returns its
    summary with the run's `folder`. The `status` is finished, diverged or preempted.

    `follow` is called with the folder once training is under way, and `finish` after it, before any
    process of the run ends. `weights_only` marks a run whose optimizer need not be kept once it has
    finished. Runs that are trained in one stack have their own `stopping` and `loss`. Raises
    ConfigError or InputError before anything is written, and Busy if another process holds the run.
    """
    check_config(config)
    stopping = stopping or Stopping()
    # Before the thread starts: both import torch._dynamo, and two imports at once fail.
    with machine.deterministic(config.trainer.device):
        # Every torch optimizer imports this module, which takes as long as torch.
        load_meanwhile = partial(importlib.import_module, "torch._dynamo")
        threading.Thread(target=load_meanwhile, daemon=True).start()
        plan = Plan(config)
        for line in plan.remarks:
            say(line)
        folder = {"folder": str(plan.folder)}
        parts = plan.folder / "checkpoints", plan.folder / checkpoint.BRANCHES
        for place in (plan.folder, *parts):
            remove_leftovers(place)
        summary = plan.summary()
        if summary and summary.ended and processes.count() == 1:
            say(f"{path_text(plan.folder)} has {summary.status} already; nothing to do")
            return summary.values() | folder
        run = Run(plan, weights_only, loss)
        try:
            with stopping:
                return run.train(stopping, follow, finish).values() | folder
        except Preempted:
            pass
        except Exception:  # after Ctrl-C, for example, another process of the run has ended
            if stopping.deferring or not stopping.stop_requested:
                raise
        summary = read_summary(plan.folder)
    known = summary.values() if summary else {"step": 0, "val_loss": None}
    return {**known, "status": "preempted", **folder}


class Run:
    """Trains a plan in its folder, from the start or from a checkpoint. With several processes
    (ranks), each has such an object, and the first one writes."""

    def __init__(self, plan: Plan, weights_only: bool = False, loss: MakeLoss = ModelLoss) -> None:
        self.plan, self.config, self.folder = plan, plan.config, plan.folder
        self.weights_only, self.ranks, self.make_loss = weights_only, ALONE, loss

    def train(self, stopping: Stopping, follow: Follow, finish: Finish) -> Summary:
        """Trains to the end or to a signal."""
        self.stopping, self.tokens = stopping, self.plan.tokens()
        data = self.plan.data(self.tokens)
        self.ranks = join(self.config.parallel.type, self.config.trainer.device)
        check_ranks(self.plan, data, self.ranks)
        stacked = self.make_loss is not ModelLoss
        self.prepared = prepare_model(self.plan, self.tokens, self.ranks, stacked)
        say(data.introduction(self.prepared.parameters))
        with ExitStack() as holding:
            summary = self.ranks.on_first(lambda: self._hold(holding))
            if summary and summary.ended:
                say(f"{path_text(self.folder)} has {summary.status} already; nothing to do")
            else:
                summary = self._train_held(summary, data, follow)
        # torchrun ends this process as soon as another one has ended with an exit code.
        self.ranks.on_first(finish)
        self.ranks.leave()
        return summary

    def _hold(self, holding: ExitStack) -> Summary | None:
        """Locks the folder until `holding` is closed. Returns its summary: another process may have
        ended the run meanwhile."""
        make_folder(self.folder)
        holding.enter_context(hold_run(self.folder))
        holding.callback(_remove_empty, self.folder)
        before = self.plan.summary()
        if not (before and before.ended) and is_there(self.folder / "metrics.jsonl"):
            read_metrics(self.folder / "metrics.jsonl")  # refuses damaged ones before any writing
        return before

    def _train_held(self, before: Summary | None, data: Data, follow: Follow) -> Summary:
        """Trains in the folder that is locked. `before` is the summary of a run that goes on."""
        with Live(stays=True) as self.live:
            self.trainer = self._build_trainer()
            saved = self._choose_checkpoint(before)
            changes = {"weights_only": self.weights_only} if before is None else {}
            changes |= self._divided()
            summary = self.ranks.on_first(
                lambda: write_beginning(
                    self.plan, self.tokens, data, self.prepared, before, saved, changes
                )
            )
            compiles = self.trainer.loss.compilation.active and self.ranks.count == 1
            kind = kind_of_kernels(self.config), self.config.trainer.device
            with share_kernels(*kind) if compiles else nullcontext(lambda: None) as release:
                self.record = Record(
                    self.folder,
                    summary,
                    self.config,
                    self.tokens,
                    self.live,
                    begin=(release, partial(follow, self.folder)),
                    writes=self.ranks.writes,
                )
                return self._train_or_fail(saved)

    def _build_trainer(self) -> Trainer:
        divided = self.prepared.division
        machine.forget_memory(self.config.trainer.device)
        torch.set_num_threads(divided.threads_each)
        trainer = build_trainer(
            self.config,
            self.prepared.model,
            build_batches(self.config, self.tokens),
            partial(self._windows, self.tokens.val, "validation"),
            divided.replicas,
            ranks=self.ranks,
            micro_batches=divided.micro_batches,
            loss=self.make_loss,
        )
        if self.plan.origin:  # its name is not that of a shorter run, and no run looks for it
            trainer.branch_at = 0
        return trainer

    def _windows(self, tokens: Any, what: str) -> Iterator[Batch]:
        """Yields evaluation windows, and shows how far it is."""
        keys, limit = self.config.trainer, self.config.data.val_tokens
        size = keys.batch_size // keys.accumulation
        done, total = 0, min(limit, len(tokens) - 1)
        for window in windows(tokens, self.config.model.context, limit, size):
            self.live(what + ", {:,.0f}/{:,.0f} tokens", done, total)
            yield window
            done += window[:, 1:].numel()

    def _choose_checkpoint(self, before: Summary | None) -> checkpoint.Checkpoint | None:
        """Returns the newest checkpoint of this run, or else of the run that `continue_from` names,
        or else the branch of a shorter one. A run that began at step 0 takes no branch. Rank 0
        chooses it for all. Raises NoUsableCheckpoint."""
        folder, origin = self.folder / "checkpoints", self.plan.origin
        keys = self.config.trainer

        def choose() -> checkpoint.Checkpoint | None:
            saved = checkpoint.newest(folder, self.plan.hash, say, NEEDS)
            if saved is not None:
                checkpoint.prune(folder, saved.step, self.config.trainer.keep)
            elif origin is not None:
                of_origin = self.plan.origin_identity
                saved = checkpoint.newest(origin / "checkpoints", of_origin, say, NEEDS)
            elif before is None or before.branched_from:
                earlier = (h for h in reversed(keys.horizons) if h < keys.steps)
                runs = chain.from_iterable(map(self.plan.at_horizon, earlier))
                saved = next(filter(None, starmap(self._branch, runs)), None)
            return saved

        return self.ranks.on_first(choose)

    def _branch(self, shorter: Path, identity: str) -> checkpoint.Checkpoint | None:
        """Returns the state that a shorter run has kept for longer ones, or None if this run would
        not reach the same digits: it has other code or data, or divides its work in another way."""
        now = {
            "source": self.plan.code,
            "versions": machine.versions(),
            "device": machine.device(self.config.trainer.device),
            "data": self.tokens.fingerprint,
            **self._divided(),
            "stacked": isinstance(self.trainer.loss, StackedLoss),
        }
        try:
            saved = checkpoint.newest(shorter / checkpoint.BRANCHES, identity, say, NEEDS)
            summary = saved and read_summary(shorter)
            if not (saved and summary):
                return None
            read_metrics(shorter / "metrics.jsonl")  # refuses damaged ones
        except (ConfigError, NoUsableCheckpoint) as error:
            say(f"the first steps are trained again: {error}")
            return None
        then = {key: getattr(summary, key) for key in now}
        then["data"], then["stacked"] = summary.data.fingerprint, bool(summary.stacked)
        then["compile"] = (summary.compile or "").partition(";")[0]
        if others := ", ".join(diff(then, now)):
            say(f"the first steps are trained again: {path_text(shorter)} had another {others}")
            return None
        return saved

    def _divided(self) -> dict[str, Any]:
        """Returns how the work is divided, under the names of the summary."""
        divided, loss = self.prepared.division, self.trainer.loss
        return {
            "threads": divided.threads,
            "compile": loss.compilation.text,
            "replicas": divided.replicas,
            "parallel": self.config.parallel.type,
            "ranks": divided.ranks,
            "micro_batches": divided.micro_batches,
            **({"stacked": loss.record} if isinstance(loss, StackedLoss) else {}),
        }

    def _train_or_fail(self, saved: checkpoint.Checkpoint | None) -> Summary:
        """Trains; an unexpected error is written into the summary before it is raised."""
        record = self.record
        try:
            with self.ranks.together():
                self._restore(saved)
                return self._train()
        except (Preempted, StorageError):
            raise
        except BaseException as error:  # a plugin may end its process, or raise what it likes
            if self.ranks.writes:
                # A lost rank does not damage the run: it can be resumed.
                status: Status = "preempted" if isinstance(error, LostRank) else "failed"
                error_text = hide_secrets(traceback.format_exc())
                record.summary = replace(record.summary, status=status, error=error_text)
                record.summary.write(self.folder)
            error.add_note(BEGAN)
            raise
        finally:
            torch.set_num_threads(self.prepared.division.threads)

    def _restore(self, saved: checkpoint.Checkpoint | None) -> None:
        """Puts the trainer and the record into the state of a checkpoint, or of the start."""
        record = self.record
        step, written = (saved.step, saved.state["written"]) if saved else (0, 0)
        record.written = self.ranks.on_first(lambda: record.rewind(written))
        record.saved = step
        if saved is None:
            return
        # Before one is open, which would name itself in the error of the next.
        names = [saved.check_has(name).stem for name in self.trainer.tensors()]
        of = saved.path.parents[1]
        try:
            with ExitStack() as opened:
                files = {name: opened.enter_context(saved.open(name)) for name in names}
                self.trainer.restore(saved.state, files)
        except FileNotFoundError:  # another process has removed it since it was chosen
            if saved.path.parent.name != checkpoint.BRANCHES:
                raise
            say(f"the first steps are trained again: {path_text(saved.path)} was removed")
            record.summary = replace(record.summary, branched_from=None, branch_step=None)
            self._restore(None)
            return
        after = "" if of == self.folder else f" of {of.name}"
        say(f"{path_text(self.folder)} goes on from step {saved.step}{after}")

    def _train(self) -> Summary:
        """Trains and tests the model, and writes the summary of the end."""
        keys, record = self.config.trainer, self.record
        for line in self.prepared.warnings:
            say(f"warning: {line}")
        self.stopping.deferring = True  # from here a signal ends training with a checkpoint
        if self.ranks.stop(self.stopping.stop_requested):
            raise Preempted
        results: dict[str, Any] = {"status": self._fit(), "diverged": record.diverged}
        results |= {"peak_memory": machine.peak_memory(keys.device), **self._divided()}
        if record.diverged:
            say(f"diverged: {record.diverged}")
        if results["status"] == "finished":
            results["val_blocks"] = self.trainer.blocks
            results |= self._test() if len(self.tokens.test) > 1 else {}
        if results["status"] in ENDED:
            device = machine.device(keys.device)
            if record.summary.device != device:  # the seconds are of several devices
                device = ""
            results |= work(self.trainer, self.config.model.context, device, keys.precision)
            # The summary is written last: after a kill here, the same command draws again.
            try:
                if self.ranks.writes:
                    draw_curve(self.folder, record.summary)
            except Exception as error:  # a failed figure must not fail the run
                say(f"curve.svg could not be drawn: {describe_error(error)}")
        record.summarize(self.trainer, **results)
        record.progress(self.trainer)
        if record.summary.ended and self.ranks.writes:
            self._forget_branch()
        if results["status"] == "finished" and not record.summary.trained:
            say(f"failed to train: {failure(record.summary, 'val_loss')}")
        return record.summary

    def _fit(self) -> str:
        """Trains, and returns how the run ended. After an update that overflowed, it trains again
        from the newest checkpoint to the step before that update."""
        overflowed: Overflowed | None = None
        while True:
            try:
                return self.trainer.fit(self.record, self.stopping, overflowed)
            except Overflowed as error:
                overflowed = error.with_traceback(None)  # which holds the weights
                say(f"{overflowed}; training again up to the step before it")
            torch.set_num_threads(self.prepared.division.threads)
            self.prepared.model = model_of(self.plan, self.tokens, self.ranks)
            self.trainer = self._build_trainer()
            self._restore(self._choose_checkpoint(self.record.summary))

    def _forget_branch(self) -> None:
        """Removes what the next shorter run has kept for this one, which has ended, and what this
        one has kept for the next longer one if that has ended before."""
        steps, horizons = self.config.trainer.steps, self.config.trainer.horizons
        for shorter in [one for one in horizons if one < steps][-1:]:
            for folder, _ in self.plan.at_horizon(shorter):
                checkpoint.remove_branch(folder, say)
        for longer in [one for one in horizons if one > steps][:1]:
            for folder, _ in self.plan.at_horizon(longer):
                with suppress(ConfigError):
                    if (summary := read_summary(folder)) and summary.ended:
                        checkpoint.remove_branch(self.folder, say)

    def _test(self) -> dict[str, Any]:
        """Returns the losses on the test part, or the status of a run that a signal stopped."""
        found = self.trainer.evaluate(self._windows(self.tokens.test, "test"))
        averaged = self.trainer.evaluate_average(self._windows(self.tokens.test, "test"))
        if found is None or averaged is None:
            return {"status": "preempted"}
        losses = self.record.losses("test", found.nats, found.tokens)
        losses |= {f"test/{name}": finite_or_none(loss) for name, loss in averaged.items()}
        losses = {name.replace("/", "_"): loss for name, loss in losses.items()}
        return {**losses, "test_blocks": found.blocks}


def _remove_empty(folder: Path) -> None:
    """Removes the folder of a run that has not begun."""
    with suppress(OSError):  # it holds something
        folder.rmdir()
