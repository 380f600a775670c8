"""The plan of a run before anything is written: its corpus, its identity, its folder."""

from contextlib import suppress
from pathlib import Path

from transformer_norms.config.compose import compose, default_axes
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.saved import is_old
from transformer_norms.config.tree import Config
from transformer_norms.data import CORPORA, TOKENIZERS, Tokens, prepare
from transformer_norms.data.prepare import identity_of
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, say
from transformer_norms.run import identity
from transformer_norms.run.folder import attempts, choose, named, shown
from transformer_norms.run.summary import read_summary


class Plan:
    """A run that is to be: its corpus, its identity, its folder. Writes nothing.

    ConfigError and InputError where it cannot be run, or was begun with other code or data.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.corpus = CORPORA.maker(config.data)()
        self.data_identity = identity_of(self.corpus)
        self.hash = identity.run_hash(config, self.data_identity)
        self.code = identity.code(config)
        self.warnings: list[str] = []  # for the record of the run
        origin = config.continue_from
        self.origin = None if origin == "none" else self._origin(Path(origin))
        after = f"-from-{identity.digest(self.origin.name)[:8]}" if self.origin else ""
        readable = identity.readable(config, default_axes())
        self.name = f"{readable}-{self.hash[:8]}{after}"
        study = Path("runs") / config.study
        self.folder, remarks = choose(
            study,
            self.name,
            attempts(study, self.hash, after) or self._translated(study, readable, after),
            again=config.again,
            code=self.code,
            data=self.data_identity,
        )
        self.remarks = [*self.warnings, *remarks]

    def _translated(self, study: Path, readable: str, after: str) -> list[Path]:
        """The attempts at this run whose config.yaml, and so their hash, is of an earlier form."""
        for file in sorted(study.glob(f"{readable}-*{after}/config.yaml")):
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
        """The corpus as tokens, from the cache or built into it."""
        choice = TOKENIZERS.maker(self.config.tokenizer)()
        data = self.config.data
        with Live() as live:
            tokens = prepare(self.corpus, choice, data.split, data.val_fraction, say, live)
        tokens.check(self.config.model.context)
        return tokens

    def _origin(self, folder: Path) -> Path:
        """The run that `continue_from` names; ConfigError unless only the horizon differs."""
        folder = folder.resolve()
        summary = read_summary(folder)
        if summary is None or summary.status != "finished":
            raise ConfigError(
                f"continue_from={shown(folder)}: only a finished run can be continued; "
                f"this one is {summary.status if summary else 'no run'}"
            )
        before = compose([as_typed("config", str(folder / "config.yaml")), *self._plugins()])
        difference = identity.difference(
            identity.identified(before, summary.data.identity),
            identity.identified(self.config, self.data_identity),
        )
        if difference:
            raise ConfigError(
                f"continue_from: only trainer.steps may differ; {difference} "
                f"(config={shown(folder)}/config.yaml beside it takes that run's settings)"
            )
        changed = identity.differing(summary.data.identity, self.data_identity)
        if changed:
            raise ConfigError(f"continue_from: the corpus has changed since ({', '.join(changed)})")
        other = identity.differing(summary.source, self.code)
        if other:
            self.warnings.append(
                f"continue_from={shown(folder)}: run by other code ({named(other)}), and continued "
                "by this one"
            )
        steps = before.trainer.steps
        if self.config.trainer.steps <= steps:
            raise ConfigError(f"continue_from: trainer.steps must be above its {steps}")
        if not list(folder.glob("checkpoints/*/optimizer.safetensors")):
            raise ConfigError(
                f"continue_from={shown(folder)}: a run of a sweep keeps its weights only; train it "
                "alone (study=NAME) to go on from it"
            )
        return folder
