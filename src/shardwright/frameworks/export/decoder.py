"""A decoder's layers, as targets read sizes and numbers off them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from shardwright.frameworks.export.exporter import Shortfall
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorKind
from shardwright.strategy.grid.model_counts import layer_runs


@dataclass(frozen=True, slots=True)
class Decoder:
    """The blocks of a decoder's layers, in order, without repetition of what they say."""

    model: Model
    layers: tuple[Block, ...]

    def named(self, name: str) -> tuple[Operator, ...]:
        """The operators of that name, of every block that has one."""
        return tuple(
            o for block in dict.fromkeys(self.layers) for o in block.operators if o.name == name
        )

    def one(self, name: str) -> Operator | None:
        """The first operator of that name."""
        return next(iter(self.named(name)), None)

    @property
    def core(self) -> AttentionShape:
        """The shape of attention."""
        found = self.one("core")
        assert found is not None, "layers without attention are refused"
        assert found.attention is not None, "a core has a shape"
        return found.attention


def decoder_of(model: Model) -> Decoder:
    """The layers of a model."""
    return Decoder(
        model, tuple(model.blocks[run.block] for run in layer_runs(model) for _ in range(run.count))
    )


def strange_layers(decoder: Decoder, made: Collection[str]) -> Iterator[Shortfall]:
    """A shortfall if a model is no chain of layers, or has operators other than those in `made`.
    Further checks of such a model make no sense.
    """
    model = decoder.model
    before: tuple[str, ...] = ()
    for run in model.runs:
        if run.inputs != before or model.blocks[run.block].sequence != "text":
            yield Shortfall(
                what=f"{model.name}: more than one chain of layers (encoders, prediction modules)",
                hint="a decoder alone",
            )
            return
        before = (run.name,)
    strange = sorted({o.name for block in decoder.layers for o in block.operators} - set(made))
    if strange or decoder.one("core") is None:
        named = ", ".join(strange[:4]) or "no attention"
        yield Shortfall(
            what=f"{model.name}: layers with {named}", hint="layers of attention and feed-forward"
        )


def strange_attention(decoder: Decoder) -> Iterator[Shortfall]:
    """Attention that differs from layer to layer, or does more than scores and values."""
    if len({o.attention for o in decoder.named("core")}) > 1:
        yield Shortfall(what="layers whose attention differs", hint="one kind of attention")
    shape = decoder.core
    if shape.sinks or shape.alibi or shape.soft_cap or shape.selected or shape.chunked:
        yield Shortfall(
            what="sinks, soft caps, ALiBi, chunks or selected keys of attention",
            hint="plain attention",
        )


def factors(decoder: Decoder) -> Iterator[Shortfall]:
    """Numbers that a layer, the embedding or logits are multiplied by, and norms and turns that are
    unlike others'.
    """
    own = decoder.model.settings
    if any(
        o.tempered or o.weighed or o.factors or o.clamped or o.groups > 1
        for block in decoder.layers
        for o in block.operators
    ):
        yield Shortfall(what="factors inside layers", hint="a model without them")
    if (
        own.embed_factor != 1.0
        or own.residual_factor != 1.0
        or own.logits_factor != 1.0
        or own.logits_cap
    ):
        yield Shortfall(
            what="factors of the embedding, of the stream or of logits", hint="a model without them"
        )
    if any(
        o.kind is OperatorKind.RESIDUAL and o.parameters
        for block in decoder.layers
        for o in block.operators
    ):
        yield Shortfall(what="stored factors of layers", hint="a model without them")
    if any(len(o.reads) > 2 for o in decoder.named("qk_norm")):
        yield Shortfall(what="norms of values", hint="a model without them")
    if not decoder.one("kv_down") and (own.score_factor != 1.0 or own.plain_scores):
        said = (
            "scores that are not divided by the root of a head's width"
            if own.plain_scores
            else f"scores times {own.score_factor:g}"
        )
        yield Shortfall(what=said, hint="a model without that factor")
    if own.norms_centred or own.local_rope_base:
        yield Shortfall(
            what="norms that take the mean away without a bias, or other turns in windows",
            hint="a model without them",
        )
