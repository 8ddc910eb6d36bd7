"""Multi-token prediction: modules after the last layer that predict one token further each (DeepSeek-V3, section 2.2).

Module k joins the hidden state before it with the embedding of the next token, projects 2 x hidden to hidden and applies one more layer.
Embedding and output weights are the main model's; the norms are its own.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.model.blocks.dense import embedding_block, head_block, hidden_extent, linear, norm
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.fields import Fields
from shardwright.model.ir.operator import OperatorClass

MAX_PREDICTORS = 64


def num_predictors(fields: Fields) -> int:
    """Prediction modules that a configuration names; 0 where it names none."""
    return fields.integer("num_nextn_predict_layers", "num_mtp_layers", minimum=0, maximum=MAX_PREDICTORS, default=0)


def predictor_modules(count: int, *, layer: Block, hidden: int, vocab: int, tied: bool) -> tuple[tuple[Block, Block], ...]:
    """(module, head) for each of `count`.

    Args:
        layer: the decoder layer inside a module; its source is the block's input.
        tied: the main head uses the embedding's weight (then the module's head does too).
    """
    if not count:
        return ()
    owner = "embed.embed.weight" if tied else "head.logits.weight"
    head = head_block(hidden=hidden, vocab=vocab, tied=True, tied_to=owner, name="mtp_head")
    return ((_module(layer, hidden=hidden, vocab=vocab), head),) * count


def _module(layer: Block, *, hidden: int, vocab: int) -> Block:
    """``lookup`` of the next tokens, norms of it and of the hidden state, their projection ``join``, then `layer`.

    ``lookup`` reads the job's token ids, so it has no inputs.
    """
    plain = embedding_block(hidden=hidden, vocab=vocab).operators[0]
    shared = tuple(replace(parameter, tied_to="embed.embed.weight") for parameter in plain.parameters)
    wide, width = hidden_extent(2 * hidden), hidden_extent(hidden)
    join = linear("join", source="hidden_norm", reads=(wide,), writes=(width,), klass=OperatorClass.STREAM)
    joined = ("embed_norm", "hidden_norm")
    return Block(
        name="mtp",
        operators=(
            replace(plain, inputs=(), parameters=shared),
            norm("embed_norm", source="lookup", hidden=hidden),
            norm("hidden_norm", source=INPUT, hidden=hidden),
            replace(join, inputs=joined, keeps=joined),
            *(operator.reading({INPUT: "join"}) for operator in layer.operators),
        ),
    )
