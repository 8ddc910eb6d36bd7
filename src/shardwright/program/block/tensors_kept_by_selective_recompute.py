"""Tensors that a selective recompute policy keeps, and operators that run again.

Kept beside a block's input; operators run again for the tensors that are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import INPUT
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    KeptOutput,
    SelectiveRecompute,
)

_ENDS = (OperatorClass.EMBED, OperatorClass.HEAD)
_PRODUCTS = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)


def saved_products(operators: Iterable[Operator]) -> Mapping[str, tuple[bool, ...]] | None:
    """By linear operator, True for each kept output (every second); None at an embedding or head.

    A fused projection counts as one product for each of its outputs. Grouped products are not kept.
    None for an embedding or a head: they are outside the checkpoint.

    Source: torchtitan, distributed/activation_checkpoint.py (`mm_recompute`: every second aten.mm,
    counted from the first; which half is kept is from memory).
    """
    listed = tuple(operators)
    if any(o.klass in _ENDS for o in listed):
        return None
    kept: dict[str, tuple[bool, ...]] = {}
    seen = 0
    for operator in listed:
        if operator.kind is OperatorKind.LINEAR:
            kept[operator.name] = tuple(
                (seen + place) % 2 == 0 for place in range(len(operator.writes))
            )
            seen += len(operator.writes)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """A selective recompute policy that names the tensors to keep, applied to one block.

    Args:
        kept: names of the kept tensors that backward, or an operator that runs again for it, reads.
        host: kept tensors that wait in host memory.
        again: operators that run again.
    """

    kept: frozenset[str]
    host: frozenset[str]
    again: frozenset[str]


@lru_cache(maxsize=256)
def named_policy(operators: tuple[Operator, ...], runtime: Runtime) -> NamedPolicy | None:
    """Tensors kept by `Runtime.kept_outputs`, and operators rerun for others; None if not in use.

    Tensors that `Runtime.kept_outputs` keep. None where another policy holds, and for an embedding
    or a head.

    Backward's inputs that the policy does not keep are made again from the tensors it keeps, and
    nothing else is: a use of a kept tensor ends the chain, so the last product of a layer never
    runs again, and a named tensor without a reader is not kept.

    Source: JAX, ad_checkpoint.py (`remat_partial_eval` drops unused residuals and computations).
    """
    if runtime.selective_recompute is not SelectiveRecompute.NAMED or any(
        o.klass in _ENDS for o in operators
    ):
        return None
    named = {kind: _outputs_of(kind, operators) for kind in KeptOutput}
    kept = frozenset().union({INPUT}, *(named[kind] for kind in runtime.kept_outputs))
    needed = {name for o in operators for name in o.keeps}
    again = set()
    for operator in reversed(operators):
        if operator.name in needed and operator.name not in kept:
            again.add(operator.name)
            needed.update(operator.inputs)
    host = frozenset().union(*(named[kind] for kind in runtime.host_outputs))
    return NamedPolicy(
        kept=kept & needed | {INPUT}, host=host & kept & (needed | {INPUT}), again=frozenset(again)
    )


def _outputs_of(kind: KeptOutput, operators: tuple[Operator, ...]) -> frozenset[str]:
    """Names of the block's tensors that a policy's name (qkv, core, proj, up, down) stands for."""
    cores = {
        o.name for o in operators if o.attention is not None and o.kind is OperatorKind.ATTENTION
    }
    acts = {o.name for o in operators if o.kind is OperatorKind.ACTIVATION}
    names: Iterable[str] = {
        KeptOutput.INPUT: (INPUT,),
        KeptOutput.QKV: (name for o in operators if o.name in cores for name in o.inputs),
        KeptOutput.CORE: cores,
        KeptOutput.PROJ: (
            o.name for o in operators if o.kind in _PRODUCTS and cores & set(o.inputs)
        ),
        KeptOutput.UP: (name for o in operators if o.name in acts for name in o.inputs),
        KeptOutput.DOWN: (
            o.name for o in operators if o.kind in _PRODUCTS and acts & set(o.inputs)
        ),
    }[kind]
    return frozenset(names)
