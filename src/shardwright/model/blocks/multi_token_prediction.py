"""Multi-token prediction modules after the last layer (DeepSeek-V3, section 2.2).

Each module predicts one token further.

Module k joins the hidden state before it with the embedding of the next token, projects 2 x hidden
to hidden and applies one more layer. Embedding and output weights are the main model's; the norms
are its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.model.blocks.dense_blocks import embedding_block, head_block
from shardwright.model.blocks.dense_transformer_operators import hidden_extent, linear, norm
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorClass

MAX_PREDICTORS = 64
MODULE, MODULE_HEAD = "mtp", "mtp_head"
PREDICTORS: Final = (MODULE, MODULE_HEAD)
"""Names of the blocks of a prediction module."""
PREDICTED: Final = ("num_nextn_predict_layers", "num_mtp_layers")
"""Fields with the number of prediction modules."""


def num_predictors(fields: Fields) -> int:
    """Number of multi-token prediction modules that a configuration states; 0 if none."""
    return fields.integer(*PREDICTED, minimum=0, maximum=MAX_PREDICTORS, default=0)


def num_predictors_of(model: Model) -> int:
    """Number of multi-token prediction modules of a model."""
    return sum(model.blocks[run.block].name == MODULE for run in model.runs)


def without_predictors(model: Model) -> Model:
    """The model without its multi-token prediction modules, as if its config had none."""
    if not num_predictors_of(model):
        return model
    remaining = [run for run in model.runs if model.blocks[run.block].name not in PREDICTORS]
    used = sorted({run.block for run in remaining})
    return replace(
        model,
        blocks=tuple(model.blocks[i] for i in used),
        runs=tuple(replace(run, block=used.index(run.block)) for run in remaining),
        base=None if model.base is None else without_predictors(model.base),
    )


def predictor_modules(
    count: int, *, layer: Block, hidden: int, vocab: int, tied: bool
) -> tuple[tuple[Block, Block], ...]:
    """(module, head) blocks of each of `count` modules; each head is tied to the model's weight.

    Args:
        layer: the decoder layer inside a module; it reads the block's input.
        tied: the main head uses the embedding's weight (then the module's head does too).
    """
    if not count:
        return ()
    owner = "embed.embed.weight" if tied else "head.logits.weight"
    head = head_block(hidden=hidden, vocab=vocab, tied=True, tied_to=owner, name=MODULE_HEAD)
    return ((_module(layer, hidden=hidden, vocab=vocab), head),) * count


def _module(layer: Block, *, hidden: int, vocab: int) -> Block:
    """Block of a prediction module: lookup of the next tokens, norms, projection ``join``, `layer`.

    ``lookup`` reads the job's token ids, so it has no inputs.
    """
    plain = embedding_block(hidden=hidden, vocab=vocab).operators[0]
    shared = tuple(
        replace(parameter, tied_to="embed.embed.weight") for parameter in plain.parameters
    )
    wide, width = hidden_extent(2 * hidden), hidden_extent(hidden)
    join = linear(
        "join", source="hidden_norm", reads=(wide,), writes=(width,), klass=OperatorClass.STREAM
    )
    joined = ("embed_norm", "hidden_norm")
    return Block(
        name=MODULE,
        operators=(
            replace(plain, inputs=(), parameters=shared),
            norm("embed_norm", source="lookup", hidden=hidden),
            norm("hidden_norm", source=INPUT, hidden=hidden),
            replace(join, inputs=joined, keeps=joined),
            *(operator.reading({INPUT: "join"}) for operator in layer.operators),
        ),
    )
