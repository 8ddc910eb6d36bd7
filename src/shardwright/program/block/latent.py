"""Operators that run again in backward instead of keeping their outputs, whatever the recompute."""

from __future__ import annotations

from shardwright.model.ir.operator import Operator, OperatorKind


def rebuilt(operators: tuple[Operator, ...]) -> frozenset[str]:
    """Names of the up projections from the latents and of the rotary embedding behind them; empty without latent attention.

    Source: Megatron-Core, recompute module ``mla_up_proj``: queries, keys and values are dropped behind the core and made again before its
    backward.
    """
    ups = {o.name for o in operators if o.kind is OperatorKind.LINEAR and o.name.endswith(("q_up", "kv_up"))}
    if not any(name.endswith("kv_up") for name in ups):
        return frozenset()
    return frozenset(ups | {o.name for o in operators if o.kind is OperatorKind.ROTARY and ups & set(o.inputs)})


def norms(operators: tuple[Operator, ...]) -> frozenset[str]:
    """Names of the norms."""
    return frozenset(o.name for o in operators if o.kind is OperatorKind.NORM)
