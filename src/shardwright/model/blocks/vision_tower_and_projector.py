"""Vision-language models: a vision transformer, a projector, and a language model.

The language model's embedding merges the projected image tokens into the text.

Sequences: the transformer and the projector run over ``image``, whose tokens are patches, behind a
class token where the model has one; ``text`` counts all positions of the language model, image
tokens among them. Where a projector merges several patches into one token, the token's elements lie
over its patches, and operators carry the share of a token's work that falls to one patch (see
`projector_operators`). Such patches are neighbours: a tower's patches stand block by block. The
runs form a chain: ``vision_embed``, ``vision``, ``projector``, ``embed``, layers, ``head``;
``embed`` looks up the job's token ids and writes image tokens (its memory, from ``projector``) over
the placeholders. Features of inner layers go round parts of the chain: `model.blocks.deepstack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.dense_blocks import layer_block
from shardwright.model.blocks.dense_transformer_operators import (
    attention_operators,
    hidden_extent,
    linear,
    mlp_operators,
    norm,
    unary_operator,
)
from shardwright.model.ir.block import INPUT, MEMORY, Block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import (
    AttentionShape,
    Mask,
    Operator,
    OperatorClass,
    OperatorKind,
)
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter, ParameterClass

IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """Sizes of a vision transformer.

    Args:
        layers, hidden, heads, ffn: sizes of the transformer; hidden is a multiple of heads.
        patch: input elements of a patch (channels x frames x pixels).
        rows: rows of the table of learned positions; 0 = none.
        class_token: one learned token before the patches of an image.
        bias: biases of all projections and norms of a layer.
        norm_bias: LayerNorms (else RMSNorms).
        gated: feed-forward with a gate.
        qk_norm: norms of queries and keys;
        value_norm: norm of values, without a gain.
        post_norms: norms behind the sub-blocks too.
        rotary: rotary positions by the row and column of a patch.
        patch_bias: bias of the patch projection.
        norm_before, norm_after: norms around the stack.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    patch: int
    rows: int = 0
    class_token: bool = False
    bias: bool = True
    norm_bias: bool = True
    gated: bool = False
    qk_norm: bool = False
    value_norm: bool = False
    post_norms: bool = False
    rotary: bool = False
    patch_bias: bool = False
    norm_before: bool = False
    norm_after: bool = False


def vision_blocks(shape: VisionShape) -> tuple[Block, Block]:
    """Blocks ``vision_embed`` (patch projection, positions) and ``vision`` (one layer).

    Every patch attends to all patches of its image.
    """
    width = hidden_extent(shape.hidden)
    project = linear(
        "patch",
        source=INPUT,
        reads=(hidden_extent(shape.patch),),
        writes=(width,),
        klass=OperatorClass.EMBED,
        bias=shape.patch_bias,
    )
    tables: list[tuple[str, tuple[Extent, ...]]] = (
        [("class", (width,))] if shape.class_token else []
    )
    if shape.rows:
        tables.append(("positions", (Extent(dim=Dim.SEQUENCE, size=shape.rows), width)))
    learned = (
        Parameter(name=f"patch.{name}", extents=extents, klass=ParameterClass.EMBED)
        for name, extents in tables
    )
    project = replace(project, parameters=(*project.parameters, *learned))
    before = (
        (norm("norm", source="patch", hidden=shape.hidden, bias=shape.norm_bias),)
        if shape.norm_before
        else ()
    )
    head_dim = shape.hidden // shape.heads
    core = AttentionShape(
        heads=shape.heads,
        kv_heads=shape.heads,
        head_dim=head_dim,
        value_dim=head_dim,
        mask=Mask.FULL,
    )
    layer = layer_block(
        "vision",
        hidden=shape.hidden,
        attention=attention_operators(
            hidden=shape.hidden,
            shape=core,
            bias=shape.bias,
            output_bias=shape.bias,
            qk_norm=shape.qk_norm,
            value_norm=shape.value_norm,
            rotary=shape.rotary,
        ),
        feed_forward=mlp_operators(
            hidden=shape.hidden, ffn=shape.ffn, gated=shape.gated, bias=shape.bias
        ),
        norm_bias=shape.norm_bias,
        post_norms=shape.post_norms,
    )
    embed = Block(name="vision_embed", operators=(project, *before), sequence=IMAGE)
    return embed, replace(layer, sequence=IMAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorShape:
    """Sizes of a projector of two linear layers with `inner` elements between.

    `norm`: width of the gain of a norm before them; 0 = none.
    """

    inner: int
    bias: bool = True
    norm: int = 0


def projector_operators(
    shape: ProjectorShape, *, width: int, hidden: int, source: str, merge: int = 1, prefix: str = ""
) -> tuple[Operator, ...]:
    """Image projector ``(norm) up act down``: joins `merge` patches, MLP to width `hidden`.

    Args:
        width: elements of a patch.
        hidden: width of the language model.
        merge: patches that become one image token: they are joined (the first layer reads merge x
            width).

    An image token's GEMM of k x n counts k x n / merge a patch: FLOPs are exact, and so is what
    every patch has of a token, 1 / merge of its elements (`Operator.folds`), both rounded up for a
    width of the language model that is no multiple of `merge`; the operands of the GEMM are counted
    once a patch. Parameters are whole.
    """
    if shape.inner % merge:
        raise ValueError(
            f"a projector of {shape.inner} elements is not a multiple of the {merge} patches of an"
            " image token"
        )
    wide, klass = hidden_extent(width * merge), OperatorClass.MLP
    operators: list[Operator] = []
    if shape.norm:
        gain = norm(f"{prefix}norm", source=source, hidden=shape.norm, bias=True)
        operators.append(
            replace(
                gain,
                reads=(hidden_extent(width),),
                writes=(hidden_extent(width),),
                joins=shape.norm // width,
            )
        )
        source = f"{prefix}norm"
    inner, share = (
        Extent(dim=Dim.FFN, size=shape.inner, quantum=merge),
        Extent(dim=Dim.FFN, size=shape.inner // merge),
    )
    act = unary_operator(
        f"{prefix}act",
        OperatorKind.ACTIVATION,
        klass,
        source=f"{prefix}up",
        reads=(share,),
        writes=(share,),
    )
    up = linear(
        f"{prefix}up", source=source, reads=(wide,), writes=(inner,), klass=klass, bias=shape.bias
    )
    up = replace(up, writes=(share,), joins=merge, folds=merge)
    out = replace(hidden_extent(hidden), quantum=1 if hidden % merge else merge)
    down = linear(
        f"{prefix}down",
        source=act.name,
        reads=(inner,),
        writes=(out,),
        klass=klass,
        bias=shape.bias,
    )
    return (
        *operators,
        up,
        act,
        replace(down, writes=(hidden_extent(-(-hidden // merge)),), folds=merge),
    )


def with_vision_tower(
    language: Model, *, vision: VisionShape, projector: Sequence[Operator]
) -> Model:
    """Put a vision tower and a projector before the embedding of a language model.

    Args:
        language: its first run must be ``embed``.
        projector: operators from the last vision layer's output (`INPUT`); the last operator
            computes image tokens.
    """
    embed, layer = vision_blocks(vision)
    operators = tuple(projector)
    if vision.norm_after:
        first = norm("vision_norm", source=INPUT, hidden=vision.hidden, bias=vision.norm_bias)
        operators = (first, *(operator.reading({INPUT: "vision_norm"}) for operator in operators))
    tower = (embed, layer, Block(name="projector", operators=operators, sequence=IMAGE))
    count = len(tower)
    blocks = (
        *tower,
        *(
            (
                _with_image_merge(b, hidden=language.hidden, folds=operators[-1].folds)
                if b.name == "embed"
                else b
            )
            for b in language.blocks
        ),
    )
    runs = (
        Run(name="vision_embed", block=0, count=1),
        Run(name="vision", block=1, count=vision.layers, inputs=("vision_embed",)),
        Run(name="projector", block=2, count=1, inputs=("vision",)),
        *(
            replace(
                run,
                block=run.block + count,
                inputs=("projector",) if run.name == "embed" else run.inputs,
            )
            for run in language.runs
        ),
    )
    return replace(language, architecture="", blocks=blocks, runs=runs)


def _with_image_merge(embed: Block, *, hidden: int, folds: int) -> Block:
    """The embedding with ``merge``: image tokens replace the placeholders of the text.

    An image token has `folds` patches.
    """
    width = hidden_extent(hidden)
    merge = Operator(
        name="merge",
        kind=OperatorKind.PERMUTE,
        klass=OperatorClass.STREAM,
        inputs=(embed.operators[-1].name, MEMORY),
        reads=(width,),
        writes=(width,),
        folds=folds,
    )
    return replace(embed, operators=(*embed.operators, merge), memory=IMAGE)
