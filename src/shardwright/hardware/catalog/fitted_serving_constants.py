"""Fitted constants of serving that no kernel table gives, with prior, range and owner of each.

Each is owned by a host, a fabric or an accelerator family; none by a model, an engine or a version.
Values come from `validation.serving.fit` over published runs (docs/serving-accuracy.md);
`DECLARED_SERVING` has the value of each before any run was seen, and its physical limits.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from shardwright.hardware.catalog.fitted_training_constants import (
    SHIPPED,
    DeclaredConstant,
    family_of,
)
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConstants:
    """Seconds of hosts and graphs, and ratios of kernel seconds in an engine over those alone.

    `DECLARED_SERVING` has meaning, owner and prior of each.
    """

    replayed_launch_s: float = 5.3317e-06
    host_launch_s: float = 4.9103e-05
    compiled_launch_s: float = 4e-05
    host_piece_s: float = 0.00016617
    host_iteration_s: float = 0.0010354
    host_sequence_s: float = 2.4383e-05
    request_s: float = 0.024734
    products_hopper: float = 0.92917
    products_blackwell: float = 0.93529
    experts_hopper: float = 0.80313
    experts_blackwell: float = 0.83371
    answers_hopper: float = 1.3451
    answers_blackwell: float = 0.98456
    sums: float = 1.4105
    prompts: float = 1.2574

    def in_place(self, kernels: str, accelerator: str) -> float:
        """Seconds of kernels of a kind in a running engine over seconds alone; 1 if not fitted.

        Args:
            kernels: products, experts, answers, sums or prompts.
            accelerator: catalog name.
        """
        return float(
            getattr(self, f"{kernels}_{family_of(accelerator)}", getattr(self, kernels, 1.0))
        )


SERVING: Final = ServingConstants()

_ALONE: Final = (
    "tables time one kernel again and again: its weights are partly in the cache, its tokens are"
    " spread evenly over experts, and the clock is not yet at the power limit"
)
_CALLS: Final = "order of magnitude of calls of Python and CUDA"


def _declared_seconds(
    name: str, owner: str, prior: float, meaning: str, source: str = _CALLS, *, spread: float = 0.5
) -> DeclaredConstant:
    """Declare a fitted constant in seconds, from a quarter to four times its prior."""
    return DeclaredConstant(
        name=name,
        owner=owner,
        prior=prior,
        spread=spread,
        low=prior / 4,
        high=prior * 4,
        meaning=f"seconds of {meaning}",
        source=source,
    )


def _declared_kernel_slowdown(
    name: str, owner: str, meaning: str, *, source: str = _ALONE, spread: float = 0.05
) -> DeclaredConstant:
    """Declare a constant, 0.7 to 1.6, prior 1: kernel seconds in an engine over seconds alone."""
    return DeclaredConstant(
        name=name,
        owner=owner,
        prior=1.0,
        spread=spread,
        low=0.7,
        high=1.6,
        meaning=f"{meaning} over their seconds alone",
        source=source,
    )


DECLARED_SERVING: Final = (
    _declared_seconds(
        "replayed_launch_s",
        "captured graphs",
        2e-6,
        "a small kernel in a captured graph, in addition to the time of the bytes that it moves",
        "the smallest kernels in the tables of casts take two microseconds in the median"
        " (docs/serving-kernels.md)",
    ),
    _declared_seconds(
        "host_launch_s",
        "host: one thread of Python",
        SHIPPED.host_launch,
        "the host for each kernel that it launches from Python, one after another",
        "fitted to training runs for the same work (`Constants.host_launch`)",
    ),
    _declared_seconds(
        "compiled_launch_s",
        "host: compiled code",
        10e-6,
        "the host for each kernel that compiled code launches",
    ),
    _declared_seconds(
        "host_piece_s",
        "host: one thread of Python",
        80e-6,
        "the host for each piece of compiled code, or of a captured graph, and the attention core"
        " after it",
    ),
    _declared_seconds(
        "host_iteration_s",
        "host: one thread of Python",
        1.5e-3,
        "the host for an iteration: scheduling, inputs, delivery of tokens",
    ),
    _declared_seconds(
        "host_sequence_s",
        "host: one thread of Python",
        20e-6,
        "the host for each request of the iteration: some twenty calls",
    ),
    _declared_seconds(
        "request_s",
        "host: processes beside the engine's",
        10e-3,
        "a request from its client to the queue and of its first token back: HTTP, tokenising, and"
        " a process in between",
    ),
    _declared_kernel_slowdown(
        "products_hopper",
        "accelerator: H100 and its siblings",
        "seconds of dense GEMMs in a running engine",
    ),
    _declared_kernel_slowdown(
        "products_blackwell",
        "accelerator: B200 and its siblings",
        "seconds of dense GEMMs in a running engine",
    ),
    _declared_kernel_slowdown(
        "experts_hopper",
        "accelerator: H100 and its siblings",
        "seconds of routed experts in a running engine",
        spread=0.08,
    ),
    _declared_kernel_slowdown(
        "experts_blackwell",
        "accelerator: B200 and its siblings",
        "seconds of routed experts in a running engine",
        spread=0.08,
    ),
    _declared_kernel_slowdown(
        "answers_hopper",
        "accelerator: H100 and its siblings",
        "seconds of decode attention in a running engine",
        spread=0.06,
    ),
    _declared_kernel_slowdown(
        "answers_blackwell",
        "accelerator: B200 and its siblings",
        "seconds of decode attention in a running engine",
        spread=0.06,
    ),
    _declared_kernel_slowdown(
        "sums",
        "fabric: inside a node",
        "seconds of the engines' own all-reduces in a running engine",
        source=(
            "a test in a closed loop hides the time that ranks wait for each other; large"
            " all-reduces run in the library and are limited by their bytes"
        ),
        spread=0.1,
    ),
    _declared_kernel_slowdown(
        "prompts",
        "kernels: attention of prompts",
        "seconds of prefill attention in a running engine",
    ),
)
"""Every fitted constant of serving before any run was seen: no more than twenty."""


def serving_constant_names() -> tuple[str, ...]:
    """Names of all constants of serving, in order."""
    return tuple(field.name for field in fields(ServingConstants))
