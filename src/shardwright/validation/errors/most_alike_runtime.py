"""A run as it would be predicted by somebody who has never seen its framework: under the base of
another one that behaves most alike.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

from shardwright.errors import RuntimeModelError
from shardwright.runtime.facts import IDENTITY
from shardwright.runtime.options import chosen
from shardwright.runtime.own_engine import RUNTIME as OWN_ENGINE
from shardwright.runtime.registry import load_runtime, runtime_names
from shardwright.runtime.runtime import Options, Runtime
from shardwright.validation.tables.measured_run import Case

_CAN = (
    "vendors zero_stages zero_with_pipeline hybrid_sharding optimizer_offload schedules"
    " default_recompute"
)
_CAPABILITIES = {
    *_CAN.split(),
    "sequence_parallel",
    "context_ring",
    "context_gather",
    "context_ulysses",
    "expert_parallel",
}
"""What a framework can run says nothing of how fast it does."""
_BEHAVIOUR = tuple(
    f.name for f in fields(Runtime) if f.name not in IDENTITY and f.name not in _CAPABILITIES
)


def as_neighbour(case: Case) -> Case:
    """`case` under the nearest other base, with those of its options that this one has."""
    return replace(case, runtime=nearest_base(case.runtime))


@cache
def nearest_base(text: str) -> str:
    """The runtime of another framework in which the fewest settings differ, once the options of
    `text` are set that it has.

    A framework of the same family, such as NeMo on Megatron-Core, is another one; a version of the
    same is not. The package's own engine is nobody's neighbour: where it has no facts of its own it
    has torchtitan's, which would lend torchtitan its own back.
    """
    runtime = load_runtime(text)
    others = [
        _with_options(load_runtime(name), (*runtime.own, *runtime.options))
        for name in runtime_names()
    ]
    near = min(
        (o for o in others if o.framework not in (runtime.framework, OWN_ENGINE.framework)),
        key=lambda other: (_distance(runtime, other), other.name),
    )
    return near.name


def _distance(one: Runtime, other: Runtime) -> int:
    return sum(getattr(one, name) != getattr(other, name) for name in _BEHAVIOUR)


def _with_options(base: Runtime, options: Options) -> Runtime:
    """`base` with each option that it offers at that value; of two that contradict each other, the
    first.
    """
    for name, value in dict(options).items():
        try:
            base = chosen(base, [(name, value)])
        except RuntimeModelError:
            continue
    return base
