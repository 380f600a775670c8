"""What is strange about a config, in a sentence each. What the user typed is permission: it trains,
and the record, `explain` and the report say so."""

from typing import Any

from transformer_norms.placement import Placement


def cautions(config: dict[str, Any], placement: Placement) -> list[str]:
    sites = {site for site, _ in placement.sites()}
    ends_normed = placement.ends_normed(config["model"]["depth"])
    normless = config["norm"]["type"] == "none"
    final = config["final_norm"] != "none" and not normless
    std = config["init"]["std"]
    zero_out = [role for role in ("output", "down") if str(std.get(role)) in ("0", "0.0")]
    warmup, steps = config["schedule"].get("warmup", 0), config["trainer"]["steps"]
    found = {
        "there is no norm on the stream: nothing bounds its growth": (
            normless or not sites & {"pre", "out", "post"}
        ),
        "the stream reaches the head without a norm": not ends_normed and not final,
        "the final norm follows a norm: at the start it changes nothing": ends_normed and final,
        f"{' and '.join(zero_out)} start at zero under a norm of the branch, which scales what "
        "little comes to full size": bool(zero_out) and "out" in sites,
        f"schedule.warmup={warmup} is as long as trainer.steps={steps}: the rate never peaks": (
            warmup >= steps
        ),
    }
    return [sentence for sentence, holds in found.items() if holds]
