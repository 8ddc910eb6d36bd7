"""Operator -> its numerics."""

from __future__ import annotations

from typing import Final

from shardwright.errors import StrategyError
from shardwright.execute.numerics.attention.attention_operator import Attention
from shardwright.execute.numerics.attention.selected_key_blocks import chosen_blocks
from shardwright.execute.numerics.base.cut_operator import GATHER, SCATTER
from shardwright.execute.numerics.base.local_operators import Local
from shardwright.execute.numerics.base.operator_protocol import Numerics
from shardwright.execute.numerics.experts.expert_layer import (
    GroupedLinear,
    Permute,
    Unpermute,
    route,
)
from shardwright.execute.numerics.experts.token_slots import Gather, Scatter, spread, weighed
from shardwright.execute.numerics.images.insert_image_tokens import Merge
from shardwright.execute.numerics.images.merged_tokens import Folds, neighbours
from shardwright.execute.numerics.images.patch_embedding import Patches
from shardwright.execute.numerics.images.patch_pooling import pooled
from shardwright.execute.numerics.layers.gated_activations import PointwiseActivation
from shardwright.execute.numerics.layers.linear import Linear
from shardwright.execute.numerics.layers.residual_sum import Residual
from shardwright.execute.numerics.layers.token_embedding import Embedding
from shardwright.execute.numerics.losses.cross_entropy import Loss
from shardwright.execute.numerics.losses.teacher_divergence import Divergence
from shardwright.execute.numerics.norms.norm_operator import Norm
from shardwright.execute.numerics.positions.rotary_operator import Rotary
from shardwright.execute.numerics.state_space.state_space_mixers import conv, scan
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind

NUMERICS: Final[dict[OperatorKind, Numerics]] = {
    OperatorKind.LINEAR: Linear(),
    OperatorKind.NORM: Norm(),
    OperatorKind.ROTARY: Rotary(),
    OperatorKind.ATTENTION: Attention(),
    OperatorKind.ACTIVATION: PointwiseActivation(),
    OperatorKind.RESIDUAL: Residual(),
    OperatorKind.EMBEDDING: Embedding(),
    OperatorKind.LOSS: Loss(),
    OperatorKind.ROUTE: Local(function=route),
    OperatorKind.GROUPED_LINEAR: GroupedLinear(),
    OperatorKind.CONV: Local(function=conv),
    OperatorKind.SCAN: Local(function=scan),
}


def _moves(operator: Operator) -> Numerics:
    """What moves tokens to their experts and back; in a cut block their slots."""
    back = operator.name.endswith("unpermute")
    if operator.klass is OperatorClass.ROUTER:
        return Local(function=weighed if back else spread)
    if operator.name.endswith((SCATTER, GATHER)):
        return Scatter() if operator.name.endswith(SCATTER) else Gather()
    return Unpermute() if back else Permute()


def numerics_of(operator: Operator) -> Numerics:
    """How an operator computes.

    Raises:
        StrategyError: no numerics for its kind (rule ``execute.operator``), or for adapters of it
        (``execute.adapters``).
    """
    if operator.adapted and operator.kind is not OperatorKind.LINEAR:
        raise StrategyError(
            f"adapters of {operator.name} (one a routed expert) cannot be executed yet",
            hint="simulate the plan, or name other targets: --train lora:r16:attn,mlp,shared",
            rule="execute.adapters",
        )
    found = Divergence() if operator.is_taught else NUMERICS.get(operator.kind)
    if operator.reads_features:
        found = Patches()
    elif operator.merges:
        found = Merge()
    elif operator.kind is OperatorKind.PERMUTE and operator.experts is not None:
        found = _moves(operator)
    elif operator.kind is OperatorKind.INDEX and operator.choice is not None:
        found = Local(function=chosen_blocks)
    elif found is not None and neighbours(operator) > 1:
        found = Folds(of=Local(function=pooled) if operator.pools else found)
    if found is None:
        raise StrategyError(
            f"operator {operator.name} ({operator.kind.value}) cannot be executed yet",
            hint="choose a model without it, or simulate the plan instead",
            rule="execute.operator",
        )
    return found
