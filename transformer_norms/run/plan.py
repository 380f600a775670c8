"""The plan of a run before anything is written: its corpus, its identity, its folder."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from transformer_norms.config.compose import compose, default_axes
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.saved import is_old
from transformer_norms.config.tree import Config
from transformer_norms.data import CORPORA, TOKENIZERS, Tokens, prepare
from transformer_norms.data.documents import Corpus
from transformer_norms.data.ngrams import ngram_facts
from transformer_norms.data.prepare import identity_of
from transformer_norms.errors import ConfigError
from transformer_norms.names import former_names
from transformer_norms.progress import Live, say
from transformer_norms.run import identity
from transformer_norms.run.folder import attempts, choose_folder, files_text, path_text
from transformer_norms.run.summary import Summary, read_summary


def prepare_tokens(config: Config, corpus: Corpus) -> Tokens:
    """Returns the tokens of a config's corpus, from the cache or built into it."""
    choice, data = TOKENIZERS.maker(config.tokenizer)(), config.data
    with Live() as live:
        return prepare(corpus, choice, data.split, data.val_fraction, data.test_fraction, say, live)


class Plan:
    """The corpus, the identity and the folder of a run that is to start or to go on.

    Raises ConfigError or InputError if the run cannot be trained, or was begun with other code or
    data. Writes nothing.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.corpus = CORPORA.maker(config.data)()
        self.data_identity = identity_of(self.corpus)
        self.hash = identity.run_hash(config, self.data_identity)
        self.code = identity.code(config)
        self.warnings: list[str] = []  # for the record of the run
        origin = config.continue_from
        self.origin = None if origin == "none" else self._find_origin(Path(origin))
        after = f"-from-{identity.digest(self.origin.name)[:8]}" if self.origin else ""
        readable = identity.readable(config, default_axes())
        self.name = f"{readable}-{self.hash[:8]}{after}"
        study = Path("runs") / config.study
        self.folder, remarks = choose_folder(
            study,
            self.name,
            attempts(study, self.hash, after) or self._old_attempts(study, readable, after),
            again=config.again,
            code=self.code,
            data=self.data_identity,
        )
        self.remarks = [*self.warnings, *remarks]

    def _old_attempts(self, study: Path, readable: str, after: str) -> list[Path]:
        """Returns the attempts at this run that an earlier version of the project wrote. Their hash
        is another, because their config.yaml has another form."""
        model = self.config.choices.model
        names = [model, *former_names("model", model)]
        spellings = {readable.replace(f"-{model}-", f"-{name}-", 1) for name in names}
        files = [file for name in spellings for file in study.glob(f"{name}-*{after}/config.yaml")]
        for file in sorted(files):
            summary = read_summary(file.parent)
            if summary is None or not is_old(file):
                continue
            with suppress(ConfigError):
                config = compose([as_typed("config", str(file)), *self._plugins()])
                if identity.run_hash(config, summary.data.identity) == self.hash:
                    return attempts(study, summary.identity, after)
        return []

    def _plugins(self) -> list[str]:
        return [as_typed("plugins", self.config.plugins)]

    def tokens(self) -> Tokens:
        """Returns the corpus as tokens, from the cache or built into it."""
        tokens = prepare_tokens(self.config, self.corpus)
        tokens.check(self.config.model.context)
        return tokens

    def ngrams(self, tokens: Tokens) -> dict[str, Any]:
        """Returns the losses of n-grams that saw as many training tokens as the run will."""
        keys, context = self.config.trainer, self.config.model.context
        read = keys.steps * keys.batch_size * context
        with Live() as live:
            return ngram_facts(tokens, read, context, self.config.data.val_tokens, say, live)

    def _find_origin(self, folder: Path) -> Path:
        """Returns the run that `continue_from` names. Raises ConfigError unless only the horizon
        differs, and that run can go on."""
        folder = folder.resolve()
        typed, summary = f"continue_from={path_text(folder)}", read_summary(folder)
        if summary is None or summary.status != "finished":
            status = summary.status if summary else "no run"
            raise ConfigError(
                f"{typed}: only a finished run can be continued; this one is {status}"
            )
        self._check_settings(folder, summary)
        if changes := identity.differing_names(summary.data.identity, self.data_identity):
            raise ConfigError(f"continue_from: the corpus has changed since ({', '.join(changes)})")
        if files := identity.differing_names(summary.source, self.code):
            line = f"{typed}: run by other code ({files_text(files)}), and continued by this one"
            self.warnings.append(line)
        if not list(folder.glob("checkpoints/*/optimizer.safetensors")):
            raise ConfigError(
                f"{typed}: a run of a sweep keeps its weights only; train it alone (study=NAME) to "
                "go on from it"
            )
        return folder

    def _check_settings(self, origin: Path, summary: Summary) -> None:
        before = compose([as_typed("config", str(origin / "config.yaml")), *self._plugins()])
        difference = identity.difference(
            identity.result_settings(before, summary.data.identity),
            identity.result_settings(self.config, self.data_identity),
        )
        if difference:
            raise ConfigError(
                f"continue_from: only trainer.steps may differ; {difference} "
                f"(config={path_text(origin)}/config.yaml beside it takes that run's settings)"
            )
        if self.config.trainer.steps <= before.trainer.steps:
            raise ConfigError(
                f"continue_from: trainer.steps must be above its {before.trainer.steps}"
            )
