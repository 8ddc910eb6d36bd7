"""Rules on features of a grid that only some frameworks have, such as sequence parallelism.

A rule takes a grid, or the largest value that a search tries of each axis, and a runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shardwright.runtime.framework_description import Runtime
from shardwright.strategy.rule_violations import GridRule, Violation

_HINT: Final = "without it, or under another runtime"

RUNTIME_RULES: Final = (
    GridRule(
        rule="runtime.sp",
        holds=lambda g, r: (g.sp == 0) | r.sequence_parallel,
        message=lambda g, r: f"{r.name} has no sequence parallelism (sp)",
        hint=_HINT,
    ),
    GridRule(
        rule="runtime.cp",
        holds=lambda g, r: (g.cp == 1) | r.context_ring | r.context_gather | r.context_ulysses,
        message=lambda g, r: f"{r.name} has no context parallelism (cp)",
        hint=_HINT,
    ),
    GridRule(
        rule="runtime.cp",
        holds=lambda g, r: (g.ulysses == 1) | r.context_ulysses,
        message=lambda g, r: f"{r.name} has no Ulysses (ulysses)",
        hint=_HINT,
        after="runtime.cp",
    ),
    GridRule(
        rule="runtime.cp",
        holds=lambda g, r: (g.gather == 0) | r.context_gather,
        message=lambda g, r: f"{r.name} has no gathered context (gather)",
        hint=_HINT,
        after="runtime.cp",
    ),
    GridRule(
        rule="runtime.experts",
        holds=lambda g, r: (g.ep * g.etp == 1) | r.expert_parallel,
        message=lambda g, r: f"{r.name} has no expert parallelism (ep, etp)",
        hint=_HINT,
    ),
    GridRule(
        rule="runtime.offload",
        holds=lambda g, r: (g.offload == 0) | r.optimizer_offload,
        message=lambda g, r: f"{r.name} has no optimizer on the host (offload)",
        hint=_HINT,
    ),
    GridRule(
        rule="runtime.shard",
        holds=lambda g, r: (g.shard == 0) | r.hybrid_sharding,
        message=lambda g, r: f"{r.name} has no sharding groups smaller than dp (shard)",
        hint=_HINT,
    ),
)
AXES_READ: Final = ("sp", "cp", "ulysses", "gather", "ep", "etp", "offload", "shard")
"""Axes of a grid that these rules read."""


def unrunnable(runtime: Runtime, grid: Any) -> Iterator[Violation]:
    """Yield a violation for each runtime rule that a grid breaks, not what follows from another.

    In place of a grid, the largest values of its axes in a search can be given.
    """
    broken: set[str] = set()
    for rule in RUNTIME_RULES:
        if rule.after not in broken and not rule.holds(grid, runtime):
            broken.add(rule.rule)
            hint = rule.hint if isinstance(rule.hint, str) else rule.hint(grid)
            yield Violation(rule=rule.rule, message=rule.message(grid, runtime), hint=hint)
