"""A table of accelerators from their data sheets: FLOP/s and memory.

This module imports no torch.
"""

import re
from dataclasses import dataclass

from transformer_norms.errors import ConfigError
from transformer_norms.names import did_you_mean, nearest


@dataclass(frozen=True)
class Accelerator:
    """`names` is a pattern for what follows "NVIDIA " or "Tesla " in the name that the device
    gives itself: a variant with another name has other figures. `peaks` are FLOP/s of dense matrix
    products by precision, in float32 without TF32. `memory` is in bytes.
    """

    names: str
    peaks: dict[str, float]
    memory: float


_A100 = {"bf16": 312e12, "fp32": 19.5e12}
_H100_SXM = {"bf16": 989e12, "fp32": 67e12}
ACCELERATORS = {
    # NVIDIA A100 data sheet
    "A100 SXM 40GB": Accelerator(r"A100-SXM4-40GB", _A100, 40e9),
    "A100 SXM 80GB": Accelerator(r"A100-SXM4-80GB", _A100, 80e9),
    "A100 PCIe 40GB": Accelerator(r"A100-PCIE-40GB", _A100, 40e9),
    "A100 PCIe 80GB": Accelerator(r"A100 80GB PCIe|A100-PCIE-80GB", _A100, 80e9),
    # NVIDIA H100, H200, L4, L40S and A10 data sheets. The bf16 figures of all but A10 are for
    # sparse products there: half of them.
    "H100 SXM": Accelerator(r"H100 80GB HBM3", _H100_SXM, 80e9),
    "H100 PCIe": Accelerator(r"H100 PCIe", {"bf16": 756e12, "fp32": 51e12}, 80e9),
    "H200": Accelerator(r"H200", _H100_SXM, 141e9),
    "L4": Accelerator(r"L4", {"bf16": 121e12, "fp32": 30.3e12}, 24e9),
    "L40S": Accelerator(r"L40S", {"bf16": 362e12, "fp32": 91.6e12}, 48e9),
    "A10": Accelerator(r"A10", {"bf16": 125e12, "fp32": 31.2e12}, 24e9),
    # NVIDIA Ampere GA102 and Ada white papers, bf16 with float32 accumulation
    "RTX 3090": Accelerator(r"GeForce RTX 3090", {"bf16": 71e12, "fp32": 35.6e12}, 24e9),
    "RTX 4090": Accelerator(r"GeForce RTX 4090", {"bf16": 165e12, "fp32": 82.6e12}, 24e9),
    # NVIDIA V100 and T4 data sheets: neither has bf16
    "V100 SXM2 16GB": Accelerator(r"V100-SXM2-16GB", {"fp32": 15.7e12}, 16e9),
    "V100 SXM2 32GB": Accelerator(r"V100-SXM2-32GB", {"fp32": 15.7e12}, 32e9),
    "V100 PCIe 16GB": Accelerator(r"V100-PCIE-16GB", {"fp32": 14e12}, 16e9),
    "V100 PCIe 32GB": Accelerator(r"V100-PCIE-32GB", {"fp32": 14e12}, 32e9),
    "T4": Accelerator(r"T4", {"fp32": 8.1e12}, 16e9),
}


def find_accelerator(name: str) -> Accelerator:
    """Returns the accelerator of that name, in capitals or not; ConfigError names the nearest."""
    by_name = {known.lower(): known for known in ACCELERATORS}
    if name.lower() in by_name:
        return ACCELERATORS[by_name[name.lower()]]
    begun = [one for one in by_name if name and one.startswith(name.lower())]
    near = did_you_mean(by_name[one] for one in begun[:1] or nearest(name, by_name))
    raise ConfigError(
        f"--accelerator {name}: {near}there is no such accelerator; there are "
        f"{', '.join(ACCELERATORS)}"
    )


def peak_of(device: str, precision: str) -> float | None:
    """Returns the most FLOP/s of the device that gives itself that name; None where its data sheet
    is not known here, as for a CPU."""
    name = re.sub(r"^(NVIDIA|Tesla) ", "", device)
    known = (one.peaks for one in ACCELERATORS.values() if re.fullmatch(one.names, name))
    return next(known, {}).get(precision)
