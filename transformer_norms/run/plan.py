"""What a command means before anything is written: which text, which run, which folder."""

from pathlib import Path
from typing import Any

from transformer_norms.config.compose import compose, plain, usual_axes
from transformer_norms.data import CORPORA, TOKENIZERS, Tokens, prepare
from transformer_norms.data.settings import DataSettings
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Live, say
from transformer_norms.run import identity
from transformer_norms.run.folder import choose, shown
from transformer_norms.run.summary import read_summary


class Plan:
    """A run that is to be: its corpus, its identity, its folder. Writes nothing.

    ConfigError and InputError where it cannot be run, or was begun with other code or data.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        shared = DataSettings.__dataclass_fields__
        own = {key: value for key, value in config["data"].items() if key not in shared}
        self.corpus = CORPORA[own.pop("type")](**own)
        self.data_identity = self.corpus.identity()
        self.hash = identity.run_hash(config, self.data_identity)
        self.code = identity.code(config)
        origin = config["continue_from"]
        self.origin = None if origin == "none" else self._origin(Path(origin))
        after = f"-from-{identity.digest(self.origin.name)[:8]}" if self.origin else ""
        self.name = f"{identity.readable(config, usual_axes())}-{self.hash[:8]}{after}"
        self.folder, self.remarks = choose(
            Path("runs") / config["study"],
            self.name,
            self.hash,
            after,
            again=config["again"],
            code=self.code,
            data=self.data_identity,
        )

    def tokens(self) -> Tokens:
        """The corpus as tokens, from the cache or built into it."""
        own = dict(self.config["tokenizer"])
        choice = TOKENIZERS[own.pop("type")](**own)
        data = self.config["data"]
        with Live() as live:
            tokens = prepare(self.corpus, choice, data["split"], data["val_fraction"], say, live)
        tokens.check(self.config["model"]["context"])
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
        before = compose([f"config={folder / 'config.yaml'}", f"plugins={self.config['plugins']}"])
        difference = identity.difference(
            identity.identified(plain(before), summary.data.identity),
            identity.identified(self.config, self.data_identity),
        )
        if difference:
            raise ConfigError(f"continue_from: only trainer.steps may differ; {difference}")
        changed = identity.differing(summary.data.identity, self.data_identity)
        if changed:
            raise ConfigError(f"continue_from: the corpus has changed since ({', '.join(changed)})")
        other = identity.differing(summary.source, self.code)
        if other:
            raise ConfigError(
                f"continue_from: it was run by other code ({', '.join(other)} differ)"
            )
        steps = before["trainer"]["steps"]
        if self.config["trainer"]["steps"] <= steps:
            raise ConfigError(f"continue_from: trainer.steps must be above its {steps}")
        if not list(folder.glob("checkpoints/*/optimizer.safetensors")):
            raise ConfigError(
                f"continue_from={shown(folder)}: a run of a sweep keeps its weights only; train it "
                "alone (study=NAME) to go on from it"
            )
        return folder
