"""Warnings about strange choices, one sentence each. The program trains what the user types,
and the record, `explain` and the report repeat the warnings."""

from collections.abc import Iterator
from textwrap import shorten

from transformer_norms.config.tree import Config
from transformer_norms.model.placement import Placement, read_placement
from transformer_norms.model.sites import REST_OF_B

_SHORT = 140  # letters


def cautions(config: Config) -> Iterator[str]:
    """Yields what is strange about a resolved config."""
    placement = read_placement(config.placement)
    sites = {name for name, site in placement.sites() if site.norm != "none"}
    final = config.norm.type if config.final_norm == "norm" else config.final_norm
    no_norm = config.norm.type == "none"
    if final == "none" and (not placement.ends_normed(config.model.depth) or no_norm):
        yield "final_norm: the stream reaches the head without a norm"
    std = config.init.std
    zeros = [role for role in ("output", "down") if str(std.get(role)) in ("0", "0.0")]
    convex = any(plan.scale("a") == REST_OF_B for _, plan in placement.everywhere())
    if zeros and ("out" in sites or convex):
        yield (
            f"init: {' and '.join(zeros)} start at zero under a norm of the branch, which scales "
            "even a tiny output to full size"
        )
    warmup, steps = config.schedule.get("warmup", 0), config.trainer.steps
    if warmup >= steps:
        yield f"schedule.warmup={warmup} is as long as trainer.steps={steps}: the rate never peaks"
    count, every = config.trainer.averaging
    if count > (taken := steps // every):
        yield f"trainer.average.count={count}: {steps} steps take only {taken} of the copies"
    for choice, text in unverified(config, placement).items():
        yield unverified_line(choice, text)


def unverified(config: Config, placement: Placement) -> dict[str, str]:
    """Returns {AXIS=NAME: what could not be verified of it}."""
    choices, about = config.choices, config.about
    texts = {
        f"preset={choices['preset']}": about.unverified,
        f"recipe={choices['recipe']}": about.recipe_unverified,
        f"init={choices['init']}": config.init.get("unverified"),
        f"attention={choices['attention']}": config.attention.get("unverified"),
    }
    for name, norm in {choices["norm"]: config.norm, **config.norms}.items():
        texts[f"norm={name}"] = norm.get("unverified")
    texts[f"placement={choices['placement']}"] = placement.unverified
    return {choice: text for choice, text in texts.items() if text not in (None, "", "none")}


def unverified_line(choice: str, text: str) -> str:
    """Returns the warning about a choice, whose first words name what is not verified."""
    short = shorten(text, _SHORT, placeholder=" ... (explain has the whole)")
    return f"{choice} is not verified: {short}"
