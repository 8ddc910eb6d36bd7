"""A decoder's layers as exporters read them, and checks for layers that targets lack."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import Shortfall
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape, Operator, OperatorKind
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import layer_runs


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder-only model and the block of each of its layers, in order."""

    model: Model
    layers: tuple[Block, ...]

    def operators_named(self, name: str) -> tuple[Operator, ...]:
        """Operators of this name, one from each distinct block of the layers."""
        return tuple(
            o for block in dict.fromkeys(self.layers) for o in block.operators if o.name == name
        )

    def first_operator(self, name: str) -> Operator | None:
        """First operator with a name; None if there is none."""
        return next(iter(self.operators_named(name)), None)

    @property
    def attention_shape(self) -> AttentionShape:
        """Heads and dims of the decoder's first attention core."""
        core = self.first_operator("core")
        assert core is not None, "layers without attention are refused"
        assert core.attention is not None, "a core has a shape"
        return core.attention

    @property
    def ties_embedding(self) -> bool:
        """True if the weight of the logits is the embedding's."""
        head = self.model.blocks[self.model.runs[-1].block]
        return any(p.tied_to for o in head.operators for p in o.parameters)


def decoder_of(model: Model) -> Decoder:
    """Decoder view of a model: the model, and one block for each layer, in order."""
    return Decoder(
        model, tuple(model.blocks[run.block] for run in layer_runs(model) for _ in range(run.count))
    )


def unsupported_layer_shortfalls(decoder: Decoder, made: Collection[str]) -> Iterator[Shortfall]:
    """Yield a shortfall if layers are no plain chain, or have operators that are not in `made`.

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
    if strange or decoder.first_operator("core") is None:
        named = ", ".join(strange[:4]) or "no attention"
        yield Shortfall(
            what=f"{model.name}: layers with {named}", hint="layers of attention and feed-forward"
        )


def unsupported_attention_shortfalls(decoder: Decoder) -> Iterator[Shortfall]:
    """Yield shortfalls for attention that differs by layer or is not plain (sinks, ALiBi, ..)."""
    if len({o.attention for o in decoder.operators_named("core")}) > 1:
        yield Shortfall(what="layers whose attention differs", hint="one kind of attention")
    shape = decoder.attention_shape
    if shape.sinks or shape.alibi or shape.soft_cap or shape.selected or shape.chunked:
        yield Shortfall(
            what="sinks, soft caps, ALiBi, chunks or selected keys of attention",
            hint="plain attention",
        )


def unsupported_factor_shortfalls(decoder: Decoder) -> Iterator[Shortfall]:
    """Shortfalls for scale factors in layers, embedding or logits, and for unusual norms."""
    settings = decoder.model.settings
    if any(
        o.tempered or o.weighed or o.factors or o.clamped or o.groups > 1
        for block in decoder.layers
        for o in block.operators
    ):
        yield Shortfall(what="factors inside layers", hint="a model without them")
    if (
        settings.embed_factor != 1.0
        or settings.residual_factor != 1.0
        or settings.logits_factor != 1.0
        or settings.logits_cap
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
    if any(len(o.reads) > 2 for o in decoder.operators_named("qk_norm")):
        yield Shortfall(what="norms of values", hint="a model without them")
    if not decoder.first_operator("kv_down") and (
        settings.score_factor != 1.0 or settings.plain_scores
    ):
        factor_text = (
            "scores that are not divided by the root of a head's width"
            if settings.plain_scores
            else f"scores times {settings.score_factor:g}"
        )
        yield Shortfall(what=factor_text, hint="a model without that factor")
    if settings.norms_centred or settings.local_rope_base:
        yield Shortfall(
            what="norms that take the mean away without a bias, or other turns in windows",
            hint="a model without them",
        )
