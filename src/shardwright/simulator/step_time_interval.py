"""The 80 % interval of a predicted step time, and the runs that the constants were fitted to."""

from __future__ import annotations

import json
from functools import cache
from math import exp
from pathlib import Path
from typing import Final

from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.catalog.fitted_training_constants import clock_name
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ElementKernels
from shardwright.simulator.prediction import Doubt

FRAMEWORK: Final = "framework without runs"
OPTIONS: Final = "options without runs"
PAIR: Final = "device new to the framework"
FILE: Final = Path(__file__).with_name("runs.json")
EXPOSED: Final = ("tp", "cp", "ep", "sharding")
NEARLY_FULL: Final = 0.8
"""Memory fraction above which the caching allocator may have to free blocks and allocate again."""
UNSEEN: Final = "device without runs"
"""Doubt of a device without any constant that was fitted to measured runs."""


COEFFICIENTS: Final[dict[str, float]] = {
    "any": 0.0597,
    "assumed rates": 0.0,
    "exposed communication": 0.2637,
    "experts": 0.046,
    "eager kernels": 0.0,
    "tables of another device": 0.0,
    "device without runs": 0.0138,
    "framework without runs": 0.0556,
    "options without runs": 0.0078,
    "device new to the framework": 0.0434,
    "memory nearly full": 0.0,
}
"""Half-width of ln(predicted / measured) for a share of 1 of each doubt, by quantile regression on
held-out rows (`tools/`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRuns:
    """Framework, device and option of each measured run.

    Args:
        pairs: (framework release, accelerator) of each run.
        options: (option, value) that some run had, set or by default.
    """

    pairs: frozenset[tuple[str, str]]
    options: frozenset[tuple[str, str]]

    def doubts(self, runtime: Runtime, accelerator: str) -> dict[str, float]:
        """Shares (0 or 1) of doubts: framework, a set option, or framework on device unmeasured."""
        devices = {device for base, device in self.pairs if base == (runtime.base or runtime.name)}
        return {
            FRAMEWORK: float(not devices),
            OPTIONS: float(any(option not in self.options for option in runtime.options)),
            PAIR: float(bool(devices) and accelerator not in devices),
        }


@cache
def shipped_runs() -> FittedRuns:
    """Frameworks, devices and options of the runs in `runs.json` (no times), cached.

    `tools/fit_constants.py` writes the file with the constants, and `tools/shipped_runs.py` writes
    it again.
    """
    fields = json.loads(FILE.read_text(encoding="utf-8"))
    return FittedRuns(
        pairs=frozenset(map(tuple, fields["pairs"])),
        options=frozenset(map(tuple, fields["options"])),
    )


def doubts(
    problem: Problem, *, parts: tuple[tuple[str, float], ...], step_s: float, full: float = 0.0
) -> tuple[Doubt, ...]:
    """Reasons to widen a prediction's interval, with share 1 or exposed communication's share.

    Args:
        parts: seconds of the step by name, see `breakdown`.
        full: fraction of its memory that the fullest device holds.
    """
    device, runtime = problem.cluster.node.accelerator, problem.runtime
    evidence_of_rates = [g.origin.evidence for g in device.gemm if g.dtype is problem.job.compute]
    evidence = evidence_of_rates[0] if evidence_of_rates else Evidence.ASSUMED
    has_measured_rates = any(
        g.origin.evidence in (Evidence.FITTED, Evidence.MEASURED) for g in device.gemm
    )
    all_doubts = (
        Doubt(name="any", share=1.0),
        Doubt(
            name="assumed rates",
            share=float(evidence is Evidence.ASSUMED and not has_measured_rates),
        ),
        Doubt(
            name="exposed communication",
            share=min(sum(v for name, v in parts if name in EXPOSED) / step_s, 1.0),
        ),
        Doubt(
            name="experts",
            share=float(problem.model.num_active_parameters < problem.model.num_parameters),
        ),
        Doubt(name="eager kernels", share=float(runtime.element_kernels is ElementKernels.EAGER)),
        Doubt(
            name="tables of another device",
            share=float(evidence is Evidence.ASSUMED and has_measured_rates),
        ),
        Doubt(name=UNSEEN, share=float(not clock_name(device.name, dtype=problem.job.compute))),
        *(
            Doubt(name=name, share=share)
            for name, share in shipped_runs().doubts(runtime, device.name).items()
        ),
        Doubt(name="memory nearly full", share=float(full > NEARLY_FULL)),
    )
    return tuple(sorted((d for d in all_doubts if d.share > 0), key=lambda d: (-d.share, d.name)))


def interval(step_s: float, present_doubts: tuple[Doubt, ...]) -> tuple[float, float]:
    """(low, high) seconds of the 80 % interval: step / e^h to step x e^h.

    h is the sum of coefficient x share over the doubts.
    """
    half = sum(COEFFICIENTS[d.name] * d.share for d in present_doubts)
    return step_s * exp(-half), step_s * exp(half)
