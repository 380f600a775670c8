"""The plan of a run before anything is written: its corpus, identity, folder and disk space."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transformer_norms import processes
from transformer_norms.config.chosen_files import default_axes
from transformer_norms.config.compose import compose
from transformer_norms.config.data_settings import expected_vocab_size
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config, check_config, diff
from transformer_norms.data import CORPORA, TOKENIZERS, Tokens, prepare
from transformer_norms.data.documents import Corpus
from transformer_norms.data.ngrams import ngram_facts
from transformer_norms.data.prepare import identity_of
from transformer_norms.errors import ConfigError, NoUsableCheckpoint
from transformer_norms.kinds import plain
from transformer_norms.progress import Live, say
from transformer_norms.run import checkpoint, identity
from transformer_norms.run.folder import (
    Attempts,
    choose_folder,
    files_text,
    path_text,
    readable_name,
)
from transformer_norms.run.metrics import read_metrics
from transformer_norms.run.space import check_metrics_size, space_left_to_write
from transformer_norms.run.summary import Data, Summary, read_summary
from transformer_norms.storage.files import preflight
from transformer_norms.storage.reading import real_path


def prepare_tokens(
    config: Config, corpus: Corpus | None = None, elsewhere: Mapping[Path, int] | None = None
) -> Tokens:
    """Returns the tokens of a config's corpus, from the cache or built into it.

    `.train`, `.val` and `.test` are arrays of ids, which lie on disk. `.tokenizer` encodes and
    decodes, and `.vocab_size` is the number of its ids. `corpus` is by default the config's.
    `elsewhere` are the bytes that will be written into other folders, and have to fit, too.
    """
    check_config(config)
    corpus = CORPORA.maker(config.data)() if corpus is None else corpus
    choice, data = TOKENIZERS.maker(config.tokenizer)(), config.data
    fractions = data.val_fraction, data.test_fraction
    with Live() as live:
        return prepare(corpus, choice, data.split, *fractions, say, live, elsewhere=elsewhere)


class Plan:
    """The corpus, the identity and the folder of a run that is to start or to go on.

    Raises ConfigError or InputError if the run cannot be trained, or was begun with other code or
    data. Writes nothing.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.corpus = CORPORA.maker(config.data)()
        self.data_identity = identity_of(self.corpus)
        if "path" in config.tokenizer:  # whose content counts
            content = TOKENIZERS.maker(config.tokenizer)().identity()
            self.data_identity |= {"tokenizer": content["sha256"]}
        self.code = identity.code(config)
        self.warnings: list[str] = []  # for the record of the run
        check_metrics_size(config)
        self.origin_identity = ""
        # The run that this one continues, or the weights that it begins from; and their name.
        self.origin: Path | None = None
        self.weights: checkpoint.Checkpoint | None = None
        self.continued_from: str | None = None
        if config.continue_from != "none":
            folder = real_path(Path(config.continue_from))
            self.continued_from = folder.name
            if summary := read_summary(folder):
                self.origin = self._check_origin(folder, summary)
            else:
                self.weights = self._find_weights(folder)
        self.hash = identity.run_hash(config, self.data_identity)
        after = f"-from-{identity.digest(self.origin.name)[:8]}" if self.origin else ""
        self.name = f"{readable_name(config, default_axes())}-{self.hash[:8]}{after}"
        study = Path("runs") / config.study
        self.folder, self.remarks = choose_folder(
            study,
            self.name,
            Attempts(study).of(self.hash, after),
            again=config.again,
            code=self.code,
            data=self.data_identity,
        )

    def at_horizon(self, steps: int) -> list[tuple[Path, str]]:
        """Returns the folders and the identity of the runs that differ from this one by their
        horizon alone, newest first."""
        config = replace(self.config, trainer=replace(self.config.trainer, steps=steps))
        run_hash = identity.run_hash(config, self.data_identity)
        folders = Attempts(self.folder.parent).of(run_hash)
        return [(folder, run_hash) for folder in reversed(folders)]

    def summary(self) -> Summary | None:
        """Returns the summary in the run's folder, or None if there is none yet. Raises
        NoUsableCheckpoint if it is that of another run, whose folder was renamed."""
        summary = read_summary(self.folder)
        if summary and summary.identity != self.hash:
            raise NoUsableCheckpoint(
                f"{path_text(self.folder)}: holds another run, {summary.identity}, and this one is "
                f"{self.hash}; nothing was deleted. Rename that folder, or type another study"
            )
        return summary

    def tokens(self) -> Tokens:
        """Returns the corpus as tokens, from the cache or built into it. Raises StorageError where
        there is no space for the whole run."""
        vocab_size = expected_vocab_size(self.config.tokenizer) + 1  # an end of documents
        tokens = prepare_tokens(self.config, self.corpus, self._space(vocab_size))
        tokens.check(self.config.model.context)
        for folder, needed in self._space(tokens.vocab_size).items():
            preflight(folder, needed)
        return tokens

    def _space(self, vocab_size: int) -> dict[Path, int]:
        """Returns the bytes that this process will write into the run's folder."""
        if processes.rank() > 0:
            return {}
        return {self.folder: space_left_to_write(self.folder, self.config, vocab_size)}

    def data(self, tokens: Tokens) -> Data:
        """Returns what the record says of the tokens, with the losses of n-grams that saw as many
        training tokens as the run will."""
        keys, context = self.config.trainer, self.config.model.context
        read = keys.steps * keys.batch_size * context
        with Live() as live:
            ngrams = ngram_facts(tokens, read, context, self.config.data.val_tokens, say, live)
        identity, fingerprint = self.data_identity, tokens.fingerprint
        return Data(identity=identity, fingerprint=fingerprint, **tokens.facts, **ngrams)

    def _find_weights(self, folder: Path) -> checkpoint.Checkpoint:
        """Returns the weights in a folder that `import` or an analysis wrote. They count as data.
        Raises ConfigError unless they are of this run's model."""
        typed = f"continue_from={path_text(folder)}"
        saved = checkpoint.newest(folder / "checkpoints", None, say, ["model"])
        if saved is None or "data" in saved.extra:  # of a run, whose summary is lost
            raise ConfigError(f"{typed}: there is no run in it")
        models = (self._saved_config(folder), self.config)
        if difference := identity.difference(*map(identity.model_settings, models)):
            raise ConfigError(f"{typed}: its weights are of another model; {difference}")
        self.data_identity |= {identity.WEIGHTS: saved.files["model.safetensors"]["sha256"]}
        return saved

    def _saved_config(self, folder: Path, *more: str) -> Config:
        """Returns the config of a folder, with the plugins of this run."""
        saved = {"config": str(folder / "config.yaml"), "plugins": self.config.plugins}
        return compose([*(as_typed(key, value) for key, value in saved.items()), *more])

    def _check_origin(self, folder: Path, summary: Summary) -> Path:
        """Returns the folder of the run that this one continues. Raises ConfigError unless only the
        horizon differs, and that run can go on."""
        typed = f"continue_from={path_text(folder)}"
        if summary.status != "finished":
            way = "" if summary.ended else f"; config={path_text(folder)} resumes it"
            raise ConfigError(
                f"{typed}: only a finished run can be continued, and this one is not "
                f"({summary.status}){way}"
            )
        read_metrics(folder / "metrics.jsonl")  # refuses damaged ones before anything is written
        if not list(folder.glob("checkpoints/*/optimizer.safetensors")):
            raise ConfigError(
                f"{typed}: it has no checkpoint with the optimizer's state, which a sweep keeps "
                "with trainer.keep_optimizer=true from its first run on; "
                f"config={path_text(folder)} again=true trains it once more, and keeps it"
            )
        before = self._saved_config(folder)
        if (steps := self.config.trainer.steps) <= before.trainer.steps:
            raise ConfigError(
                f"{typed}: type a later trainer.steps too; that run ended at step "
                f"{before.trainer.steps}"
            )
        others = as_typed("trainer.branches", plain(self.config.trainer.branches))
        longer = self._saved_config(folder, f"trainer.steps={steps}", others)
        if (weights := summary.data.identity.get(identity.WEIGHTS)) is not None:
            self.data_identity |= {identity.WEIGHTS: weights}
        self._check_settings(typed, summary, longer)
        if files := diff(summary.source, self.code):
            line = f"{typed}: run by other code ({files_text([*files])}), and continued by this one"
            self.warnings.append(line)
        self.origin_identity = summary.identity
        return folder

    def _check_settings(self, typed: str, summary: Summary, longer: Config) -> None:
        """Raises ConfigError if this run is not `longer`, the origin with a later horizon. What
        follows from the horizon may differ from the origin."""
        data = summary.data.identity
        wanted, now = (identity.result_settings(c, data) for c in (longer, self.config))
        if difference := identity.difference(wanted, now):
            names = identity.difference(longer.choices, self.config.choices)
            raise ConfigError(f"{typed}: only trainer.steps may differ; {names or difference}")
        if changes := diff(data, self.data_identity):
            what = files_text([*changes])
            raise ConfigError(
                f"{typed}: the corpus is not what that run read; {what} (data.paths?)"
            )
