"""Fitted constants of the training cost model, with prior, range and owner of each.

Each is owned by an accelerator family, a fabric or a generation of kernels; none by a framework or
a source. Values come from `validation.training.fit_constants` over published runs
(docs/accuracy.md lists rows and confidence). A declaration has the constant's value before any run
was seen (its prior) and its physical limits; a fit that no row informs returns the prior.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Final

from shardwright.dtype import Dtype
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Values of all fitted constants, as shipped unless replaced.

    See `DECLARED` for meaning, owner and prior of each.
    """

    clock_ampere: float = 1.088
    clock_hopper: float = 1.2401
    clock_hopper_fp8: float = 1.0679
    clock_blackwell: float = 1.4372
    clock_blackwell_fp8: float = 1.1151
    passes_fused: float = 1.3013
    passes_eager: float = 1.0734
    passes_native: float = 1.7773
    attention_triton: float = 0.99402
    overlap_slowdown: float = 1.2417
    jitter: float = 0.0035222
    host_launch: float = 4.9474e-05
    collective_wait_s: float = 2.4376e-05


SHIPPED: Final = Constants()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredConstant:
    """A constant before it is fitted to any run: owner, prior, limits, meaning and source.

    Args:
        name: field of `Constants`.
        owner: accelerator family, fabric or kernel generation that it belongs to.
        prior: value without any run;
        spread: standard deviation of its logarithm.
        low, high: physical limits.
        meaning: quantity that it multiplies.
        source: of prior and spread.
    """

    name: str
    owner: str
    prior: float
    spread: float
    low: float
    high: float
    meaning: str
    source: str


_POWER: Final = (
    "power physics: a short kernel runs at boost clock, a long run at the power limit; 700 W H100:"
    " 783 TFLOP/s, then 600 to 670"
)
_CLOCK: Final = "seconds of GEMMs in long runs over seconds in short measurements"


def _declared_clock_ratio(
    name: str, owner: str, prior: float, source: str = _POWER
) -> DeclaredConstant:
    """Declare a family's factor (1.0 to 1.8) on GEMM seconds in long runs, for its lower clock."""
    return DeclaredConstant(
        name=name,
        owner=owner,
        prior=prior,
        spread=0.07,
        low=1.0,
        high=1.8,
        meaning=_CLOCK,
        source=source,
    )


DECLARED: Final = (
    _declared_clock_ratio("clock_ampere", "accelerator: A100 and its siblings, 16 bits", 1.05),
    _declared_clock_ratio("clock_hopper", "accelerator: H100 and its siblings, 16 bits", 1.2),
    _declared_clock_ratio(
        "clock_hopper_fp8",
        "accelerator: H100 and its siblings, 8 bits",
        1.1,
        f"{_POWER}; the table's 8-bit kernels include casts",
    ),
    _declared_clock_ratio(
        "clock_blackwell",
        "accelerator: B200 and its siblings, 16 bits",
        1.5,
        f"{_POWER}; consecutive GEMMs on 8 B200: 0.49 of peak forward, 0.455 for weight gradients"
        " (MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json) against 0.714 in the table",
    ),
    _declared_clock_ratio(
        "clock_blackwell_fp8", "accelerator: B200 and its siblings, 8 and 4 bits", 1.15
    ),
    DeclaredConstant(
        name="passes_fused",
        owner="kernels: fused or compiled element-wise",
        prior=1.2,
        spread=0.15,
        low=1.0,
        high=2.0,
        meaning="traffic of fused element-wise kernels over the minimal bytes",
        source="fused kernels read and write each tensor once, plus masks and statistics",
    ),
    DeclaredConstant(
        name="passes_eager",
        owner="kernels: chains of eager element-wise kernels",
        prior=1.1,
        spread=0.1,
        low=1.0,
        high=1.6,
        meaning=(
            "traffic of chains of eager kernels over their counted bytes"
            " (src/shardwright/program/block/kernels/eager_kernel_bytes.py)"
        ),
        source=(
            "the count is of tensors read and written once; sums over rows and tokens run in two"
            " passes, below the bandwidth of copies"
        ),
    ),
    DeclaredConstant(
        name="passes_native",
        owner="kernels: PyTorch's own, one launch an operator (LayerNorm, GELU, sums)",
        prior=1.5,
        spread=0.15,
        low=1.0,
        high=2.5,
        meaning=(
            "traffic of element-wise operators that are one kernel in eager PyTorch over the"
            " minimal bytes"
        ),
        source=(
            "between fused kernels and chains of eager ones: each reads and writes its tensor once;"
            " casts and layout copies come on top"
        ),
    ),
    DeclaredConstant(
        name="attention_triton",
        owner="kernels: Triton's flash attention of 2022-23",
        prior=1.0,
        spread=0.12,
        low=0.7,
        high=1.5,
        meaning="seconds of the kernel, forward and backward, over the rates that its curve states",
        source=(
            "curve from the FlashAttention-2 paper's figures, read from memory; carried to Hopper"
            " by multiprocessors x clock"
        ),
    ),
    DeclaredConstant(
        name="overlap_slowdown",
        owner="kernels: NCCL's collectives beside compute kernels",
        prior=1.3,
        spread=0.2,
        low=1.0,
        high=2.0,
        meaning="seconds of compute kernels beside a collective over their seconds alone",
        source=(
            "16 to 24 channels of 108 to 132 multiprocessors, twice the bus bandwidth of memory"
            " traffic; arXiv 2507.03114: 1.19 over whole steps, up to 1.4"
        ),
    ),
    DeclaredConstant(
        name="jitter",
        owner="fabric: every cluster",
        prior=0.004,
        spread=0.7,
        low=1e-4,
        high=0.02,
        meaning="share of the step that each doubling of nodes adds",
        source="stragglers: the slowest of n draws grows about as log n",
    ),
    DeclaredConstant(
        name="host_launch",
        owner="host: one thread of Python that drives an eager framework",
        prior=3e-5,
        spread=0.5,
        low=5e-6,
        high=1e-4,
        meaning=(
            "seconds of the host for each kernel that no captured graph replays: modules, autograd,"
            " tensor wrappers and the launch"
        ),
        source=(
            "5 to 10 us for an operator of PyTorch under autograd, 100 us and more for a module of"
            " several kernels with quantisers"
        ),
    ),
    DeclaredConstant(
        name="collective_wait_s",
        owner="fabric: NCCL",
        prior=22e-6,
        spread=0.4,
        low=2e-6,
        high=80e-6,
        meaning=(
            "seconds that a blocking collective between a step's kernels takes beyond a test's, for"
            " each doubling of members"
        ),
        source=(
            "between kernels it waits for the last member and for the events of two streams, which"
            " a test in a closed loop hides; 32, 51 and 87 us for 2, 4 and 8 B200"
            " (MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json: all_gather) against 9,"
            " 12 and 18 us in aiconfigurator-core's table"
        ),
    ),
)

_CLOCKS: Final = {
    "ampere": ("clock_ampere", ""),
    "hopper": ("clock_hopper", "clock_hopper_fp8"),
    "blackwell": ("clock_blackwell", "clock_blackwell_fp8"),
}
_FAMILIES: Final = {
    "ampere": ("a100-", "a800-", "a30"),
    "hopper": ("h100-", "h200-", "h800-", "gh200-"),
    "blackwell": ("b200-", "b300-", "gb200-", "gb300-"),
}


def slowdown_beside(constants: Constants, *, factor: float) -> float:
    """Factor >= 1: catalog `factor` x overlap slowdown of `constants` over the shipped one.

    `factor` is that of the device's catalog entry, which has the shipped constant in it.
    """
    return max(factor * constants.overlap_slowdown / SHIPPED.overlap_slowdown, 1.0)


def constant_names() -> tuple[str, ...]:
    """Names of all constants, in order."""
    return tuple(f.name for f in fields(Constants))


@lru_cache(maxsize=256)
def family_of(accelerator: str) -> str:
    """Family of an accelerator: ``ampere``, ``hopper`` or ``blackwell``; empty for any other."""
    return next((f for f, prefixes in _FAMILIES.items() if accelerator.startswith(prefixes)), "")


def clock_name(accelerator: str, *, dtype: Dtype) -> str:
    """Name of the constant for an accelerator's slowdown by its sustained clock; empty if none."""
    family = family_of(accelerator)
    if not family:
        return ""
    sixteen, eight = _CLOCKS[family]
    return sixteen if dtype.bits >= 16 else eight


def clock_ratio(constants: Constants, *, accelerator: str, dtype: Dtype) -> float:
    """Factor on GEMM seconds by a device's sustained clock, over the shipped; 1 if not fitted."""
    name = clock_name(accelerator, dtype=dtype)
    return float(getattr(constants, name) / getattr(SHIPPED, name)) if name else 1.0
