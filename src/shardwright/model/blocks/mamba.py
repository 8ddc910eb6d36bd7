"""State-space mixers: Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) and Mamba-1 (Gu and Dao 2023, arXiv 2312.00752), and models made of them.

Operators: ``in_proj conv scan gate gate_norm out_proj`` (Mamba-2), ``in_proj conv x_proj dt_proj scan gate out_proj`` (Mamba-1). All
are of class ssm; heads (Mamba-2) or channels (Mamba-1) are what a split on t cuts, B and C groups fewer than the parts are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardwright.model.blocks.decoder import configured_model
from shardwright.model.blocks.dense import hidden_extent, linear, norm, residual
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.fields import MAX_FFN, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind, ScanShape
from shardwright.model.ir.tensor import Dim, Extent, Parameter

MAX_STATE: Final = 2**14
MAX_KERNEL: Final = 2**10
MAX_CHUNK: Final = 2**16
MAMBA1_CHUNK: Final = 1


def heads_extent(count: int, *, width: int = 1) -> Extent:
    """`count` heads of `width` elements, cut between heads."""
    return Extent(dim=Dim.HEADS, size=count * width, quantum=width)


def conv_operator(name: str, *, source: str, channels: tuple[Extent, ...], kernel: int, bias: bool) -> Operator:
    """Depthwise causal convolution of `kernel` taps over `channels`, with the activation that follows it."""
    taps = hidden_extent(kernel)
    suffixes = [f".{i}" if i else "" for i in range(len(channels))]
    weights = [Parameter(name=f"{name}.weight{s}", extents=(c, taps)) for s, c in zip(suffixes, channels, strict=True)]
    if bias:
        weights += [Parameter(name=f"{name}.bias{s}", extents=(c,)) for s, c in zip(suffixes, channels, strict=True)]
    return Operator(
        name=name,
        kind=OperatorKind.CONV,
        klass=OperatorClass.SSM,
        inputs=(source,),
        reads=channels,
        writes=channels,
        parameters=tuple(weights),
        keeps=(source,),
    )


def gate_operator(name: str, *, inputs: tuple[str, str], width: Extent, klass: OperatorClass = OperatorClass.SSM) -> Operator:
    """y = first x act(second): the output of a core times a gate of its own width."""
    return Operator(
        name=name,
        kind=OperatorKind.ACTIVATION,
        klass=klass,
        inputs=inputs,
        reads=(width, width),
        writes=(width,),
        keeps=inputs,
        gated=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaShape:
    """Sizes of a Mamba-2 mixer.

    Args:
        scan: the recurrence; its heads x head_dim is the inner width.
        kernel: taps of the convolution.
        conv_bias, proj_bias: biases of the convolution and of both projections.
        gate_norm: RMSNorm of the gated output.
    """

    scan: ScanShape
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    gate_norm: bool = True


def mamba2_operators(*, source: str, hidden: int, shape: MambaShape, prefix: str = "") -> tuple[Operator, ...]:
    """A Mamba-2 mixer from the normed input to the projected output.

    ``in_proj`` writes gate z, x, B, C and the step dt: hidden x (2 inner + 2 groups x state + heads). The scan keeps the inputs of its
    chunks; the states between chunks are recomputed.
    """
    scan, klass = shape.scan, OperatorClass.SSM
    inner = heads_extent(scan.heads, width=scan.head_dim)
    shared, steps = heads_extent(scan.groups, width=scan.state), heads_extent(scan.heads)
    width = hidden_extent(hidden)
    names = {n: f"{prefix}{n}" for n in ("in_proj", "conv", "scan", "gate", "gate_norm", "out_proj")}
    operators = [
        linear(
            names["in_proj"], source=source, reads=(width,), writes=(inner, inner, shared, shared, steps), klass=klass, bias=shape.proj_bias
        ),
        conv_operator(names["conv"], source=names["in_proj"], channels=(inner, shared, shared), kernel=shape.kernel, bias=shape.conv_bias),
        Operator(
            name=names["scan"],
            kind=OperatorKind.SCAN,
            klass=klass,
            inputs=(names["conv"], names["in_proj"]),
            reads=(inner, shared, shared, steps),
            writes=(inner,),
            parameters=tuple(Parameter(name=f"{names['scan']}.{n}", extents=(steps,)) for n in ("a_log", "d", "dt_bias")),
            keeps=(names["conv"], names["in_proj"]),
            scan=scan,
        ),
        gate_operator(names["gate"], inputs=(names["scan"], names["in_proj"]), width=inner),
    ]
    if shape.gate_norm:
        operators.append(width_norm(names["gate_norm"], source=names["gate"], width=inner, gain=inner))
    operators.append(
        linear(names["out_proj"], source=operators[-1].name, reads=(inner,), writes=(width,), klass=klass, bias=shape.proj_bias)
    )
    return tuple(operators)


def width_norm(name: str, *, source: str, width: Extent, gain: Extent, klass: OperatorClass = OperatorClass.SSM) -> Operator:
    """RMSNorm over (groups of) an inner width, with a gain of its own extent (the width, or one head)."""
    return Operator(
        name=name,
        kind=OperatorKind.NORM,
        klass=klass,
        inputs=(source,),
        reads=(width,),
        writes=(width,),
        parameters=(Parameter(name=f"{name}.weight", extents=(gain,)),),
        keeps=(source,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveShape:
    """Sizes of a Mamba-1 mixer: `inner` channels with a state of `state` each, steps from a latent of `rank`, `kernel` taps.

    `inner_norms`: RMSNorms of dt, B and C (Jamba).
    """

    inner: int
    state: int
    rank: int
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False


def mamba1_operators(*, source: str, hidden: int, shape: SelectiveShape, prefix: str = "") -> tuple[Operator, ...]:
    """A Mamba-1 mixer: a scan of `inner` heads of width one; B and C are one group, summed over channels by ``x_proj``."""
    klass, state = OperatorClass.SSM, hidden_extent(shape.state)
    inner, rank, width = heads_extent(shape.inner), hidden_extent(shape.rank), hidden_extent(hidden)
    names = {n: f"{prefix}{n}" for n in ("in_proj", "conv", "x_proj", "dt_proj", "scan", "gate", "out_proj")}
    operators = [
        linear(names["in_proj"], source=source, reads=(width,), writes=(inner, inner), klass=klass, bias=shape.proj_bias),
        conv_operator(names["conv"], source=names["in_proj"], channels=(inner,), kernel=shape.kernel, bias=shape.conv_bias),
        linear(names["x_proj"], source=names["conv"], reads=(inner,), writes=(rank, state, state), klass=klass),
    ]
    latent = names["x_proj"]
    if shape.inner_norms:
        latent = f"{prefix}x_norm"
        parts = (rank, state, state)
        gains = zip(("dt", "b", "c"), parts, strict=True)
        operators.append(
            Operator(
                name=latent,
                kind=OperatorKind.NORM,
                klass=klass,
                inputs=(names["x_proj"],),
                reads=parts,
                writes=parts,
                parameters=tuple(Parameter(name=f"{latent}.{n}", extents=(e,)) for n, e in gains),
                keeps=(names["x_proj"],),
            )
        )
    scanned = (names["conv"], names["dt_proj"], latent)
    a_log = Parameter(name=f"{names['scan']}.a_log", extents=(inner, state))
    operators += [
        linear(names["dt_proj"], source=latent, reads=(rank,), writes=(inner,), klass=klass, bias=True),
        Operator(
            name=names["scan"],
            kind=OperatorKind.SCAN,
            klass=klass,
            inputs=scanned,
            reads=(inner, inner, state, state),
            writes=(inner,),
            parameters=(a_log, Parameter(name=f"{names['scan']}.d", extents=(inner,))),
            keeps=scanned,
            # Mamba-1 has no chunked form: a chunk of one token leaves the state's update and its reading.
            scan=ScanShape(heads=shape.inner, head_dim=1, state=shape.state, groups=1, chunk=MAMBA1_CHUNK),
        ),
        gate_operator(names["gate"], inputs=(names["scan"], names["in_proj"]), width=inner),
        linear(names["out_proj"], source=names["gate"], reads=(inner,), writes=(width,), klass=klass, bias=shape.proj_bias),
    ]
    return tuple(operators)


def mixer_block(name: str, *, hidden: int, mixer: tuple[Operator, ...]) -> Block:
    """x + mixer(norm x): a layer with one sub-block; `mixer` has the source ``norm``."""
    return Block(
        name=name,
        operators=(
            norm("norm", source=INPUT, hidden=hidden),
            *mixer,
            residual("residual", source=mixer[-1].name, skip=INPUT, hidden=hidden),
        ),
    )


def scan_shape(fields: Fields, *, heads: str, head_dim: str, state: str, groups: str, chunk: str) -> ScanShape:
    """A Mamba-2 recurrence from the family's spellings; groups must divide the heads."""
    count = fields.integer(heads, maximum=MAX_HEADS)
    shared = fields.integer(groups, maximum=MAX_HEADS)
    if count % shared:
        fields.fail(f"{fields.path}{groups} = {shared} does not divide the {count} state-space heads", hint="choose a divisor of the heads")
    return ScanShape(
        heads=count,
        head_dim=fields.integer(head_dim, maximum=MAX_HEAD_DIM),
        state=fields.integer(state, maximum=MAX_STATE),
        groups=shared,
        chunk=fields.integer(chunk, maximum=MAX_CHUNK),
    )


def build_mamba2(fields: Fields, *, name: str) -> Model:
    """Mamba-2 as Transformers writes it (`Mamba2Config`: expand 2, conv bias, no projection bias, untied): layers of one mixer each."""
    hidden = fields.hidden()
    scan = scan_shape(fields, heads="num_heads", head_dim="head_dim", state="state_size", groups="n_groups", chunk="chunk_size")
    inner = scan.heads * scan.head_dim
    expand = fields.integer("expand", default=2, maximum=64)
    if inner != expand * hidden:
        fields.fail(
            f"num_heads x head_dim = {inner} is not expand x hidden_size = {expand * hidden}", hint="the three fields describe one width"
        )
    shape = MambaShape(
        scan=scan,
        kernel=fields.integer("conv_kernel", maximum=MAX_KERNEL),
        conv_bias=fields.flag("use_conv_bias", default=True),
        proj_bias=fields.flag("use_bias", default=False),
    )
    block = mixer_block("mamba", hidden=hidden, mixer=mamba2_operators(source="norm", hidden=hidden, shape=shape))
    tied = fields.flag("tie_word_embeddings", default=False)
    return configured_model(fields, name=name, architecture="Mamba2ForCausalLM", layers=[block] * fields.layers(), tied=tied)


def build_mamba(fields: Fields, *, name: str) -> Model:
    """Mamba-1 (`MambaConfig`: conv bias, no projection bias, tied)."""
    hidden = fields.hidden()
    rank = fields.mapping.get("time_step_rank")
    shape = SelectiveShape(
        inner=fields.integer("intermediate_size", default=fields.integer("expand", default=2, maximum=64) * hidden, maximum=MAX_FFN),
        state=fields.integer("state_size", maximum=MAX_STATE),
        rank=-(-hidden // 16) if rank == "auto" else fields.integer("time_step_rank", maximum=MAX_HIDDEN),
        kernel=fields.integer("conv_kernel", maximum=MAX_KERNEL),
        conv_bias=fields.flag("use_conv_bias", default=True),
        proj_bias=fields.flag("use_bias", default=False),
    )
    block = mixer_block("mamba", hidden=hidden, mixer=mamba1_operators(source="norm", hidden=hidden, shape=shape))
    tied = fields.flag("tie_word_embeddings", default=True)
    return configured_model(fields, name=name, architecture="MambaForCausalLM", layers=[block] * fields.layers(), tied=tied)
