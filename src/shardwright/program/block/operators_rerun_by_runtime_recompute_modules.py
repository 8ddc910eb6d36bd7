"""Operators that run again in backward instead of keeping their outputs.

Whatever the layer's recompute: named modules, Mamba's convolutions, logits.

Source: Megatron-Core, transformer_config.py, ``recompute_modules``: layernorm, mla_up_proj,
moe_act, mlp, shared_experts, moe, each under a checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.identity_cache_keys import Same
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import FullRecompute, LinearLoss

_ENDS: Final = (OperatorClass.EMBED, OperatorClass.HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedOperators:
    """Operators of a block that run again in backward, by name.

    Args:
        dropped: operators whose outputs are not kept.
        again: operators whose kernels and collectives run again.
    """

    dropped: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()


def recomputed_operators(operators: tuple[Operator, ...], runtime: Runtime) -> RecomputedOperators:
    """Names of operators whose outputs the runtime drops, and of those it reruns in backward."""
    return _recomputed_operators(Same(operators), Same(runtime))


@lru_cache(maxsize=4096)
def _recomputed_operators(
    block_operators: Same[tuple[Operator, ...]], block_runtime: Same[Runtime]
) -> RecomputedOperators:
    """`recomputed_operators` of a block's operators and a runtime, cached by identity."""
    operators, runtime = block_operators.value, block_runtime.value
    parts = [_drop_and_rerun(_convolutions(operators))]
    if runtime.logits_parts > 1 or runtime.linear_loss is LinearLoss.CUT:
        parts.append(
            RecomputedOperators(
                again=frozenset(
                    o.name
                    for o in operators
                    if o.klass is OperatorClass.HEAD and o.kind is not OperatorKind.NORM
                )
            )
        )
    if runtime.rebuilds_latent:
        parts.append(_drop_and_rerun(_latent_up_projections(operators)))
    if runtime.rebuilds_norms and not any(o.klass in _ENDS for o in operators):
        parts.append(
            _drop_and_rerun(
                o.name
                for o in operators
                if o.kind is OperatorKind.NORM and o.klass is OperatorClass.STREAM
            )
        )
    if runtime.rebuilds_expert_activation:
        parts.append(
            _drop_and_rerun(
                o.name for o in operators if o.kind is OperatorKind.ACTIVATION and is_routed(o)
            )
        )
    for klass, rebuilds in (
        (OperatorClass.MLP, runtime.rebuilds_mlp),
        (OperatorClass.SHARED, runtime.rebuilds_shared_experts),
    ):
        if rebuilds:
            parts.append(_checkpointed(tuple(o for o in operators if o.klass is klass), runtime))
    if runtime.rebuilds_experts:
        routed = tuple(
            o for o in operators if o.klass in (OperatorClass.ROUTER, OperatorClass.EXPERTS)
        )
        parts.append(_checkpointed(routed, runtime))
    return RecomputedOperators(
        dropped=frozenset().union(*(part.dropped for part in parts)),
        again=frozenset().union(*(part.again for part in parts)),
    )


def is_dropped(tensor: str, names: frozenset[str]) -> bool:
    """True if a kept tensor (output, ``.suffix``, ``.quantised``) is of an operator in `names`."""
    return tensor in names or tensor.removesuffix(".quantised").rsplit(".", 1)[0] in names


def _convolutions(operators: tuple[Operator, ...]) -> frozenset[str]:
    """Names of the convolutions before a Mamba scan, which backward recomputes.

    Mamba's library makes them again in every framework, as part of the same function.

    Source: state-spaces/mamba, ops/triton/ssd_combined.py at 01b717ae0db0
    (`MambaSplitConv1dScanCombinedFn`: keeps the projection's output and the scan's) and
    ops/selective_scan_interface.py (`checkpoint_lvl` 1; from memory); Megatron-Core,
    ssm/mamba_mixer.py at 00bebb45b9b2 (`_ssm_training`).
    """
    read = {name for o in operators if o.scan is not None and not o.scan.delta for name in o.inputs}
    return frozenset(o.name for o in operators if o.kind is OperatorKind.CONV and o.name in read)


def _drop_and_rerun(names: Iterable[str]) -> RecomputedOperators:
    """Operators `names`, as both dropped (outputs not kept) and rerun in backward."""
    operator_names = frozenset(names)
    return RecomputedOperators(dropped=operator_names, again=operator_names)


def _latent_up_projections(operators: tuple[Operator, ...]) -> frozenset[str]:
    """Names of latent attention's up projections and their rotary embedding; empty without them.

    Empty without latent attention.

    Queries, keys and values are dropped behind the core and made again before its backward
    (``mla_up_proj``).
    """
    ups = {
        o.name
        for o in operators
        if o.kind is OperatorKind.LINEAR and o.name.endswith(("q_up", "kv_up"))
    }
    if not any(name.endswith("kv_up") for name in ups):
        return frozenset()
    return frozenset(
        ups | {o.name for o in operators if o.kind is OperatorKind.ROTARY and ups & set(o.inputs)}
    )


def _checkpointed(module: tuple[Operator, ...], runtime: Runtime) -> RecomputedOperators:
    """Drop all outputs of a module but the last; rerun all, but the last GEMM if it stops early."""
    names = [o.name for o in module]
    stops = runtime.full_recompute is FullRecompute.STOPS_EARLY
    last = (
        next(
            (
                o.name
                for o in reversed(module)
                if o.kind in (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
            ),
            "",
        )
        if stops
        else ""
    )
    return RecomputedOperators(dropped=frozenset(names[:-1]), again=frozenset(names) - {last})
