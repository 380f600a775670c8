"""Trains one run of a config in its folder."""

import importlib
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transformer_norms import processes
from transformer_norms.config.building import build_batches, build_model, build_trainer
from transformer_norms.config.saved import to_yaml
from transformer_norms.config.tree import Config, check_config, diff
from transformer_norms.data.batches import windows
from transformer_norms.errors import (
    BEGAN,
    ConfigError,
    LostRank,
    StorageError,
    describe_error,
    hide_secrets,
)
from transformer_norms.kinds import plain
from transformer_norms.model.transformer import Transformer
from transformer_norms.progress import Live, say
from transformer_norms.run import checkpoint, machine
from transformer_norms.run.curve import draw_curve
from transformer_norms.run.failure import failure
from transformer_norms.run.folder import hold_run, path_text, this_process
from transformer_norms.run.identity import kind_of_kernels
from transformer_norms.run.metrics import LONGEST, read_metrics
from transformer_norms.run.plan import Plan
from transformer_norms.run.record import Record
from transformer_norms.run.summary import ENDED, Data, Status, Summary, read_summary
from transformer_norms.signals import Preempted, Stopping
from transformer_norms.storage.files import make_folder, remove_leftovers, write_bytes, write_json
from transformer_norms.storage.reading import is_there, read_bytes
from transformer_norms.training.causality import pass_warnings
from transformer_norms.training.divergence import Overflowed
from transformer_norms.training.flops import work
from transformer_norms.training.graphs.compiling import share_kernels
from transformer_norms.training.loss import Batch, ModelLoss
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.parallel.ranks import ALONE, join
from transformer_norms.training.parallel.sharding import sharder
from transformer_norms.training.parallel.stacks import StackedLoss
from transformer_norms.training.parallel.work_division import (
    Division,
    divide,
    resume_division,
    thread_count,
)
from transformer_norms.training.probes import high_losses, measure_start
from transformer_norms.training.trainer import Trainer

Follow = Callable[[Path], None]
Finish = Callable[[], None]
MakeLoss = Callable[..., ModelLoss]
_THEN = ", then "  # between the devices of a run that went on elsewhere


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

    `follow` is called with the folder once training is under way, and `finish` after it, before
    any process of the run ends. `weights_only` marks a run whose optimizer need not be kept once it
    has finished. A stack of runs gives each what stops it and its loss. Raises ConfigError or
    InputError before anything is written, and Busy if another process holds the run.
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
        for place in (plan.folder, plan.folder / "checkpoints"):
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
        except Exception:  # Ctrl-C has ended another process of the run, for example
            if stopping.deferring or not stopping.stop_requested:
                raise
        summary = read_summary(plan.folder)
    known = summary.values() if summary else {"step": 0, "val_loss": None}
    return {**known, "status": "preempted", **folder}


class Run:
    """Trains a plan in its folder, from the start or from a checkpoint. `train` gives it its
    tokens, its live line, what stops it, and its record."""

    def __init__(self, plan: Plan, weights_only: bool = False, loss: MakeLoss = ModelLoss) -> None:
        self.plan, self.config, self.folder = plan, plan.config, plan.folder
        self.weights_only, self.ranks, self.make_loss = weights_only, ALONE, loss

    def train(self, stopping: Stopping, follow: Follow, finish: Finish) -> Summary:
        """Trains to the end or to a signal. Every rank calls it, and rank 0 writes."""
        self.stopping, self.follow = stopping, follow
        tokens = self.tokens = self.plan.tokens()
        data = Data(
            identity=self.plan.data_identity,
            fingerprint=tokens.fingerprint,
            **tokens.facts,
            **self.plan.ngrams(tokens),
        )
        self.ranks = join(self.config.parallel.type, self.config.trainer.device)
        self._check_ranks(data)
        self.model = self._build()
        parameters = sum(p.numel() for p in self.model.parameters())
        say(data.introduction(parameters))
        with ExitStack() as holding:
            before = self.ranks.on_first(lambda: self._hold(holding))
            if before and before.ended:
                say(f"{path_text(self.folder)} has {before.status} already; nothing to do")
                summary = before
            else:
                with Live(stays=True) as self.live:
                    self.trainer = self._build_trainer()
                    identity = before.identity if before else self.plan.hash
                    saved = self._choose_checkpoint(identity)
                    summary = self.ranks.on_first(
                        lambda: self._write_first(self._summary(before, data, parameters))
                    )
                    with self._kernels() as release:
                        self.record = Record(
                            self.folder,
                            summary,
                            self.config,
                            self.tokens,
                            self.live,
                            begin=(release, partial(self.follow, self.folder)),
                            writes=self.ranks.writes,
                        )
                        summary = self._train_or_fail(saved)
        # torchrun ends this process as soon as another one has ended with an exit code.
        self.ranks.on_first(finish)
        self.ranks.leave()
        return summary

    def _check_ranks(self, data: Data) -> None:
        """Raises ConfigError unless all ranks would train the same run."""
        typed = {f"trainer.{key}": value for key, value in plain(self.config.trainer).items()}
        same = {"folder": str(self.folder), "tokens": data.fingerprint, **self.plan.code, **typed}
        first, *others = self.ranks.gather(same | {"parallel": self.config.parallel.type})
        for rank, other in enumerate(others, 1):
            if names := list(diff(first, other)):
                raise ConfigError(
                    f"parallel={self.config.parallel.type}: rank {rank} has another "
                    f"{', '.join(names[:3])} than rank 0; all need one command, code and data"
                )

    def _hold(self, holding: ExitStack) -> Summary | None:
        """Locks the folder for as long as `holding` is entered. Returns the summary that is there,
        which says where another process has ended the run meanwhile."""
        make_folder(self.folder)
        holding.enter_context(hold_run(self.folder))
        holding.callback(_remove_empty, self.folder)
        before = self.plan.summary()
        if not (before and before.ended) and is_there(self.folder / "metrics.jsonl"):
            read_metrics(self.folder / "metrics.jsonl")  # refuses damaged ones before any writing
        return before

    def _build(self) -> Transformer:
        """Builds the model, and divides the work of a step. A run that goes on keeps the division
        as far as its digits depend on it. A run in a stack of runs has one replica."""
        config, keys = self.config, self.config.trainer
        before = self.ranks.on_first(lambda: read_summary(self.folder))
        # The ranks of a larger machine take no more, so that all divide the work alike.
        cores = min(self.ranks.gather(max(1, processes.cores() // processes.local_count())))
        threads = before and before.threads
        if not threads:
            sizes, count = config.model, self.ranks.count
            threads = thread_count(keys, sizes, self.tokens.vocab_size, cores, count)
        torch.set_num_threads(threads)
        model = self._build_model()
        seen = pass_warnings(model, self.tokens.vocab_size)
        self.warnings = [*config.warnings, *self.plan.warnings, *seen]
        alone: dict[str, Any] = {"replicas": 1} if self.make_loss is not ModelLoss else {}
        if before:
            parts = before.micro_batches or 1, before.ranks or 1, before.replicas or 1
            divided = replace(Division(*parts, threads), **alone)
            self.division = resume_division(divided, keys, model, cores, self.ranks.count)
        else:
            optimizer = OPTIMIZERS[config.optimizer.type]
            self.division = divide(
                replace(keys, **alone), model, optimizer, threads, self.ranks.count
            )
        self.start = None
        if before is None and self.plan.origin is None:  # else it begins trained
            first = build_batches(config, self.tokens)(0)  # which variants of one seed share
            self.start = measure_start(model, first[:, :-1])
            self.warnings += high_losses(model, first)
        return model

    def _build_model(self) -> Transformer:
        config = self.config
        shard = sharder(config.parallel.type, config.trainer.device, self.ranks)
        return build_model(config, self.tokens.vocab_size, shard)

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
                # Of a rank that is gone, the run itself may be as good as before.
                status: Status = "preempted" if isinstance(error, LostRank) else "failed"
                error_text = hide_secrets(traceback.format_exc())
                record.summary = replace(record.summary, status=status, error=error_text)
                record.summary.write(self.folder)
            error.add_note(BEGAN)
            raise
        finally:
            torch.set_num_threads(self.division.threads)

    def _summary(self, before: Summary | None, data: Data, parameters: int) -> Summary:
        """Returns the summary of a run that begins, or that goes on from `before`."""
        if before is None:
            config = self.config
            return Summary(
                status="running",
                steps=config.trainer.steps,
                parameters=parameters,
                choices=dict(config.choices),
                identity=self.plan.hash,
                continued_from=self.plan.origin.name if self.plan.origin else None,
                data=data,
                versions=machine.versions(),
                **machine.commit(),
                source=self.plan.code,
                device=machine.device(config.trainer.device),
                **self._divided(),
                weights_only=self.weights_only,
                start=self.start,
                warnings=self.warnings,
                process=this_process(),
            )
        if before.data.fingerprint != data.fingerprint:
            raise ConfigError(
                f"{path_text(self.folder)}: the tokens have changed since this run began "
                f"({before.data.fingerprint[:12]} then, {data.fingerprint[:12]} now); "
                "again=true runs it anew beside it"
            )
        changed = {**self._divided(), "process": this_process(), "device": self._devices(before)}
        return replace(before, status="running", error=None, **changed)

    def _devices(self, before: Summary) -> str:
        """Returns the name of the device, behind those on which the run was before."""
        device, known = machine.device(self.config.trainer.device), before.device or ""
        if known.rpartition(_THEN)[2] in ("", device):
            return known or device
        say(f"{path_text(self.folder)} was trained on {known}, and goes on on {device}")
        return f"{known}{_THEN}{device}"

    def _divided(self) -> dict[str, Any]:
        """Returns what the summary says of how the work is divided."""
        divided, loss = self.division, self.trainer.loss
        return {
            "threads": divided.threads,
            "compile": loss.compilation.text,
            "replicas": divided.replicas,
            "parallel": self.config.parallel.type,
            "ranks": divided.ranks,
            "micro_batches": divided.micro_batches,
            **({"stacked": loss.record} if isinstance(loss, StackedLoss) else {}),
        }

    def _write_first(self, summary: Summary) -> Summary:
        """Writes what a run begins with, and returns its summary."""
        if not (self.folder / "summary.json").exists():
            write_bytes(self.folder / "config.yaml", to_yaml(self.config).encode())
            write_json(self.folder / "tokenizer.json", self.tokens.tokenizer.save())
            if self.plan.origin:
                rows = read_bytes(self.plan.origin / "metrics.jsonl", LONGEST)
                write_bytes(self.folder / "metrics.jsonl", rows)
        summary.write(self.folder)
        return summary

    def _kernels(self) -> AbstractContextManager[Callable[[], None]]:
        """Returns what the first run of a kind holds while it compiles, and others wait for."""
        if not self.trainer.loss.compilation.active or self.ranks.count > 1:
            return nullcontext(lambda: None)
        return share_kernels(kind_of_kernels(self.config), self.config.trainer.device)

    def _train(self) -> Summary:
        keys, record = self.config.trainer, self.record
        for line in self.warnings:
            say(f"warning: {line}")
        self.stopping.deferring = True
        if self.ranks.stop(self.stopping.stop_requested):
            raise Preempted
        results: dict[str, Any] = {"status": self._fit()}
        trainer = self.trainer
        results |= {"peak_memory": machine.peak_memory(keys.device), **self._divided()}
        if record.diverged:
            results["diverged"] = record.diverged
            say(f"diverged: {record.diverged}")
        if results["status"] == "finished":
            results["val_blocks"] = trainer.blocks
            results |= self._test() if len(self.tokens.test) > 1 else {}
        if results["status"] in ENDED:
            device = machine.device(keys.device)
            if record.summary.device != device:  # the seconds are of several devices
                device = ""
            results |= work(trainer, self.config.model.context, device, keys.precision)
            # A run that is killed meanwhile has not ended: the same command draws again.
            if self.ranks.writes:
                self._draw(record.summary)
        record.summarize(trainer, **results)
        record.progress(trainer)
        if results["status"] == "finished" and not record.summary.trained:
            say(f"failed to train: {failure(record.summary, 'val_loss')}")
        return record.summary

    def _fit(self) -> str:
        """Trains, and returns how the run ended. The weights before an update that overflowed are
        gone: then it trains again from the newest checkpoint to the step before that update."""
        overflowed: Overflowed | None = None
        while True:
            try:
                return self.trainer.fit(self.record, self.stopping, overflowed)
            except Overflowed as error:
                overflowed = error.with_traceback(None)  # which holds the weights
                say(f"{overflowed}; training again up to the step before it")
            torch.set_num_threads(self.division.threads)
            self.model = self._build_model()
            self.trainer = self._build_trainer()
            self._restore(self._choose_checkpoint(self.record.summary.identity))

    def _build_trainer(self) -> Trainer:
        keys, divided = self.config.trainer, self.division
        machine.forget_memory(keys.device)
        torch.set_num_threads(divided.threads_each)
        return build_trainer(
            self.config,
            self.model,
            build_batches(self.config, self.tokens),
            partial(self._windows, self.tokens.val, "validation"),
            divided.replicas,
            ranks=self.ranks,
            micro_batches=divided.micro_batches,
            loss=self.make_loss,
        )

    def _test(self) -> dict[str, Any]:
        """Returns the losses on the test part, or the status of a run that a signal stopped."""
        nats = self.trainer.evaluate(self._windows(self.tokens.test, "test"), self.stopping)
        if nats is None:
            return {"status": "preempted"}
        losses = self.record.losses("test", *nats)
        losses = {"test_loss": losses["test/loss"], "test_bpb": losses["test/bpb"]}
        return {**losses, "test_blocks": self.trainer.blocks}

    def _draw(self, summary: Summary) -> None:
        try:
            draw_curve(self.folder, summary)
        except Exception as error:  # a failed figure must not fail the run
            say(f"curve.svg could not be drawn: {describe_error(error)}")

    def _windows(self, tokens: Any, what: str) -> Iterator[Batch]:
        """Yields evaluation windows, and shows how far it is."""
        keys, limit = self.config.trainer, self.config.data.val_tokens
        size = keys.batch_size // keys.accumulation
        done, total = 0, min(limit, len(tokens) - 1)
        for window in windows(tokens, self.config.model.context, limit, size):
            self.live(what + ", {:,.0f}/{:,.0f} tokens", done, total)
            yield window
            done += window[:, 1:].numel()

    def _choose_checkpoint(self, identity: str) -> checkpoint.Checkpoint | None:
        """Returns the folder's newest checkpoint that this run can go on from, or else that of the
        origin. Rank 0 chooses it for all. Raises NoUsableCheckpoint."""
        folder, origin = self.folder / "checkpoints", self.plan.origin

        def choose() -> checkpoint.Checkpoint | None:
            needs = ("model", "optimizer")
            saved = checkpoint.newest(folder, identity, say, needs)
            if saved is not None:
                checkpoint.prune(folder, saved.step, self.config.trainer.keep)
            elif origin is not None:
                of_origin = self.plan.origin_identity
                saved = checkpoint.newest(origin / "checkpoints", of_origin, say, needs)
            return saved

        return self.ranks.on_first(choose)

    def _restore(self, saved: checkpoint.Checkpoint | None) -> None:
        record = self.record
        step, written = (saved.step, saved.state.get("written", saved.step)) if saved else (0, 0)
        written = self.ranks.on_first(lambda: record.rewind(written))
        record.written, record.saved = written, step
        if saved is None:
            return
        with saved.open("model") as model, saved.open("optimizer") as optimizer:
            self.trainer.restore(saved.state, model, optimizer)
        say(f"{path_text(self.folder)} goes on from step {saved.step}")


def _remove_empty(folder: Path) -> None:
    """Removes the folder of a run that has not begun."""
    with suppress(OSError):  # it holds something
        folder.rmdir()
