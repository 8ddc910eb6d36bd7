"""The part of a model that a server runs: the text decoder with its main head."""

from __future__ import annotations

from dataclasses import replace

from shardwright.errors import StrategyError
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Mask, OperatorKind


def served_model(model: Model) -> Model:
    """Model without prediction modules (MTP): only runs that the last head reads.

    The main head is kept.
    """
    needed = model.before(model.runs[-1].name)
    return replace(model, runs=tuple(run for run in model.runs if run.name in needed))


def require_served(model: Model) -> None:
    """Raise `StrategyError` if a server cannot run the model.

    Raises:
        StrategyError: several sequences, several heads, an encoder alone, or keys that an indexer
        selects (rule ``serve.model``).
    """
    blocks = [model.blocks[run.block] for run in model.runs]
    heads = sum(o.kind is OperatorKind.LOSS for block in blocks for o in block.operators)
    unserved = next((block for block in blocks if block.memory or block.sequence != TEXT), None)
    if unserved is not None or heads != 1:
        reason = (
            f"block {unserved.name} reads another sequence than the text"
            if unserved is not None
            else f"the model has {heads} heads"
        )
        raise StrategyError(
            f"{reason}: such a model cannot be served yet",
            hint=(
                "serve a decoder of text alone; `served_model` leaves out modules that predict"
                " further tokens"
            ),
            rule="serve.model",
        )
    for operator in (o for block in blocks for o in block.operators):
        if operator.kind is OperatorKind.INDEX:
            raise StrategyError(
                f"{operator.name} selects keys: key selection cannot be served yet",
                hint="serve a model whose attention reads all keys",
                rule="serve.model",
            )
        if operator.attention is not None and operator.attention.mask is not Mask.CAUSAL:
            raise StrategyError(
                f"{operator.name} attends to later tokens, so that it cannot generate text token by"
                " token",
                hint="serve a causal model",
                rule="serve.model",
            )
