"""Registry of the numerics (forward and backward passes) of each operator kind."""

from __future__ import annotations

from typing import Final

from shardwright.errors import StrategyError
from shardwright.execute.numerics.attention.attention_operator import Attention
from shardwright.execute.numerics.attention.indexer_key_block_selection import select_key_blocks
from shardwright.execute.numerics.base.isolate_operator_of_pipeline_cut_block import GATHER, SCATTER
from shardwright.execute.numerics.base.operator_protocol import Numerics
from shardwright.execute.numerics.base.operator_with_autograd_backward import AutogradOperator
from shardwright.execute.numerics.experts.routed_rows_as_token_slots import (
    GatherSlots,
    ScatterSlots,
    copy_to_slots,
    sum_weighted_slots,
)
from shardwright.execute.numerics.experts.routing_permutation_and_expert_linear import (
    GroupedLinear,
    Permute,
    Unpermute,
    route,
)
from shardwright.execute.numerics.images.insert_image_tokens import InsertImageTokens
from shardwright.execute.numerics.images.operators_over_merged_tokens import (
    OverMergedTokens,
    neighbour_count,
)
from shardwright.execute.numerics.images.patch_embedding import PatchEmbedding
from shardwright.execute.numerics.images.patch_pooling import pool_patches
from shardwright.execute.numerics.layers.activation_operator import PointwiseActivation
from shardwright.execute.numerics.layers.linear import Linear
from shardwright.execute.numerics.layers.residual_sum import Residual
from shardwright.execute.numerics.layers.token_embedding import Embedding
from shardwright.execute.numerics.losses.cross_entropy import CrossEntropy
from shardwright.execute.numerics.losses.teacher_divergence import TeacherDivergence
from shardwright.execute.numerics.norms.norm_operator import Norm
from shardwright.execute.numerics.positions.rotary_operator import Rotary
from shardwright.execute.numerics.state_space.state_space_mixers import (
    causal_convolution,
    state_space_scan,
)
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind

NUMERICS: Final[dict[OperatorKind, Numerics]] = {
    OperatorKind.LINEAR: Linear(),
    OperatorKind.NORM: Norm(),
    OperatorKind.ROTARY: Rotary(),
    OperatorKind.ATTENTION: Attention(),
    OperatorKind.ACTIVATION: PointwiseActivation(),
    OperatorKind.RESIDUAL: Residual(),
    OperatorKind.EMBEDDING: Embedding(),
    OperatorKind.LOSS: CrossEntropy(),
    OperatorKind.ROUTE: AutogradOperator(function=route),
    OperatorKind.GROUPED_LINEAR: GroupedLinear(),
    OperatorKind.CONV: AutogradOperator(function=causal_convolution),
    OperatorKind.SCAN: AutogradOperator(function=state_space_scan),
}


def _token_exchange_numerics(operator: Operator) -> Numerics:
    """Numerics of an operator that moves tokens to their experts or back.

    In a block that a pipeline cut divides, tokens move as slots.
    """
    returns = operator.name.endswith("unpermute")
    if operator.klass is OperatorClass.ROUTER:
        return AutogradOperator(function=sum_weighted_slots if returns else copy_to_slots)
    if operator.name.endswith((SCATTER, GATHER)):
        return ScatterSlots() if operator.name.endswith(SCATTER) else GatherSlots()
    return Unpermute() if returns else Permute()


def numerics_of(operator: Operator) -> Numerics:
    """Numerics that run an operator forward and backward; StrategyError if none can yet.

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
    numerics = TeacherDivergence() if operator.reads_teacher_logits else NUMERICS.get(operator.kind)
    if operator.reads_features:
        numerics = PatchEmbedding()
    elif operator.merges:
        numerics = InsertImageTokens()
    elif operator.kind is OperatorKind.PERMUTE and operator.experts is not None:
        numerics = _token_exchange_numerics(operator)
    elif operator.kind is OperatorKind.INDEX and operator.choice is not None:
        numerics = AutogradOperator(function=select_key_blocks)
    elif numerics is not None and neighbour_count(operator) > 1:
        numerics = OverMergedTokens(
            of=AutogradOperator(function=pool_patches) if operator.pools else numerics
        )
    if numerics is None:
        raise StrategyError(
            f"operator {operator.name} ({operator.kind.value}) cannot be executed yet",
            hint="choose a model without it, or simulate the plan instead",
            rule="execute.operator",
        )
    return numerics
