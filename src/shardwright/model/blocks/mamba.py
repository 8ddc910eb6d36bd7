"""State-space mixers Mamba-2 and Mamba-1: their operators, and models made of them.

Mamba-2: Dao and Gu 2024, arXiv 2405.21060. Mamba-1: Gu and Dao 2023, arXiv 2312.00752.

Operators: ``in_proj conv scan gate gate_norm out_proj`` (Mamba-2), ``in_proj conv x_proj dt_proj
scan gate out_proj`` (Mamba-1). All are of class ssm; heads (Mamba-2) or channels (Mamba-1) are what
a split on t cuts, B and C groups fewer than the parts are copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.assemble_decoder_model import configured_model
from shardwright.model.blocks.dense_transformer_operators import (
    hidden_extent,
    linear,
    norm,
    residual,
    split_parameters,
    unary_operator,
)
from shardwright.model.ir.block import INPUT, Block
from shardwright.model.ir.config_json_field_access import (
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    Fields,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind, ScanShape
from shardwright.model.ir.tensor_dims import Dim, Extent, Parameter

MAX_STATE: Final = 2**14
MAX_KERNEL: Final = 2**10
MAX_CHUNK: Final = 2**16
MAMBA1_CHUNK: Final = 1


def heads_extent(count: int, *, width: int = 1) -> Extent:
    """Extent of `count` heads of `width` elements, divisible between heads."""
    return Extent(dim=Dim.HEADS, size=count * width, quantum=width)


def conv_operator(
    *, channels: tuple[Extent, ...], kernel: int, bias: bool, prefix: str = ""
) -> Operator:
    """``conv``: depthwise causal convolution over `channels` of ``in_proj``, with its activation.

    It has `kernel` taps.
    """
    name, source = f"{prefix}conv", f"{prefix}in_proj"
    weights = split_parameters(f"{name}.weight", [(c, hidden_extent(kernel)) for c in channels])
    biases = split_parameters(f"{name}.bias", [(c,) for c in channels]) if bias else ()
    parameters = (*weights, *biases)
    return unary_operator(
        name,
        OperatorKind.CONV,
        OperatorClass.SSM,
        source=source,
        reads=channels,
        writes=channels,
        parameters=parameters,
    )


def gate_operator(*, inputs: tuple[str, str], width: Extent, prefix: str = "") -> Operator:
    """``gate``: first x act(second), a core's output times a gate of equal width."""
    return Operator(
        name=f"{prefix}gate",
        kind=OperatorKind.ACTIVATION,
        klass=OperatorClass.SSM,
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
        grouped: norm the heads of each group of the scan separately.
    """

    scan: ScanShape
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    gate_norm: bool = True
    grouped: bool = True


def mamba2_operators(
    *, hidden: int, shape: MambaShape, prefix: str = "", source: str = "norm1"
) -> tuple[Operator, ...]:
    """Operators of a Mamba-2 mixer from the normed input to the projected output.

    ``in_proj`` computes gate z, x, B, C and the step dt: hidden x (2 inner + 2 groups x state +
    heads). The scan keeps the inputs of its chunks; the states between chunks are recomputed.
    """
    scan, klass = shape.scan, OperatorClass.SSM
    inner = heads_extent(scan.heads, width=scan.head_dim)
    shared, steps = heads_extent(scan.groups, width=scan.state), heads_extent(scan.heads)
    width = hidden_extent(hidden)
    names = {
        n: f"{prefix}{n}" for n in ("in_proj", "conv", "scan", "gate", "gate_norm", "out_proj")
    }
    operators = [
        linear(
            names["in_proj"],
            source=source,
            reads=(width,),
            writes=(inner, inner, shared, shared, steps),
            klass=klass,
            bias=shape.proj_bias,
        ),
        conv_operator(
            channels=(inner, shared, shared),
            kernel=shape.kernel,
            bias=shape.conv_bias,
            prefix=prefix,
        ),
        Operator(
            name=names["scan"],
            kind=OperatorKind.SCAN,
            klass=klass,
            inputs=(names["conv"], names["in_proj"]),
            reads=(inner, shared, shared, steps),
            writes=(inner,),
            parameters=tuple(
                Parameter(name=f"{names['scan']}.{n}", extents=(steps,))
                for n in ("a_log", "d", "dt_bias")
            ),
            keeps=(names["conv"], names["in_proj"]),
            scan=scan,
        ),
        gate_operator(inputs=(names["scan"], names["in_proj"]), width=inner, prefix=prefix),
    ]
    if shape.gate_norm:
        norm = width_norm(source=names["gate"], width=inner, gain=inner, prefix=prefix)
        operators.append(replace(norm, groups=scan.groups if shape.grouped else 1))
    operators.append(
        linear(
            names["out_proj"],
            source=operators[-1].name,
            reads=(inner,),
            writes=(width,),
            klass=klass,
            bias=shape.proj_bias,
        )
    )
    return tuple(operators)


def width_norm(*, source: str, width: Extent, gain: Extent, prefix: str = "") -> Operator:
    """``gate_norm``: RMSNorm over an inner width or its groups, with a gain of extent `gain`.

    The gain has the width, or one head.
    """
    gains = (Parameter(name=f"{prefix}gate_norm.weight", extents=(gain,)),)
    return unary_operator(
        f"{prefix}gate_norm",
        OperatorKind.NORM,
        OperatorClass.SSM,
        source=source,
        reads=(width,),
        writes=(width,),
        parameters=gains,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveShape:
    """Sizes of a Mamba-1 mixer: channels, state, rank of the step's latent, convolution taps.

    `inner_norms`: RMSNorms of dt, B and C (Jamba).
    """

    inner: int
    state: int
    rank: int
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False


def mamba1_operators(
    *, hidden: int, shape: SelectiveShape, source: str = "norm1"
) -> tuple[Operator, ...]:
    """Operators of a Mamba-1 mixer: a scan of `inner` heads of width one.

    B and C are one group, which ``x_proj`` sums over channels.
    """
    klass, state = OperatorClass.SSM, hidden_extent(shape.state)
    inner, rank, width = heads_extent(shape.inner), hidden_extent(shape.rank), hidden_extent(hidden)
    parts = (rank, state, state)
    operators = [
        linear(
            "in_proj",
            source=source,
            reads=(width,),
            writes=(inner, inner),
            klass=klass,
            bias=shape.proj_bias,
        ),
        conv_operator(channels=(inner,), kernel=shape.kernel, bias=shape.conv_bias),
        linear("x_proj", source="conv", reads=(inner,), writes=parts, klass=klass),
    ]
    if shape.inner_norms:
        gains = tuple(
            Parameter(name=f"x_norm.{n}", extents=(e,))
            for n, e in zip(("dt", "b", "c"), parts, strict=True)
        )
        operators.append(
            unary_operator(
                "x_norm",
                OperatorKind.NORM,
                klass,
                source="x_proj",
                reads=parts,
                writes=parts,
                parameters=gains,
            )
        )
    latent = operators[-1].name
    scanned = ("conv", "dt_proj", latent)
    a_log = Parameter(name="scan.a_log", extents=(inner, state))
    return (
        *operators,
        linear("dt_proj", source=latent, reads=(rank,), writes=(inner,), klass=klass, bias=True),
        Operator(
            name="scan",
            kind=OperatorKind.SCAN,
            klass=klass,
            inputs=scanned,
            reads=(inner, inner, state, state),
            writes=(inner,),
            parameters=(a_log, Parameter(name="scan.d", extents=(inner,))),
            keeps=scanned,
            # Mamba-1 has no chunked form: a chunk of one token leaves the state's update and its
            # reading.
            scan=ScanShape(
                heads=shape.inner, head_dim=1, state=shape.state, groups=1, chunk=MAMBA1_CHUNK
            ),
        ),
        gate_operator(inputs=("scan", "in_proj"), width=inner),
        linear(
            "out_proj",
            source="gate",
            reads=(inner,),
            writes=(width,),
            klass=klass,
            bias=shape.proj_bias,
        ),
    )


def mixer_block(name: str, *, hidden: int, mixer: tuple[Operator, ...]) -> Block:
    """A layer x + mixer(norm x) with one sub-block; `mixer` reads ``norm``."""
    return Block(
        name=name,
        operators=(
            norm("norm", source=INPUT, hidden=hidden),
            *mixer,
            residual("residual", source=mixer[-1].name, skip=INPUT, hidden=hidden),
        ),
    )


def scan_shape(fields: Fields, *, heads: str, head_dim: str, state: str) -> ScanShape:
    """Read a Mamba-2 scan's shape from the three fields named and ``n_groups``, ``chunk_size``."""
    count = fields.integer(heads, maximum=MAX_HEADS)
    shared = fields.integer("n_groups", maximum=MAX_HEADS)
    if count % shared:
        fields.fail(
            f"{fields.path}n_groups = {shared} does not divide the {count} state-space heads",
            hint="choose a divisor of the heads",
        )
    return ScanShape(
        heads=count,
        head_dim=fields.integer(head_dim, maximum=MAX_HEAD_DIM),
        state=fields.integer(state, maximum=MAX_STATE),
        groups=shared,
        chunk=fields.integer("chunk_size", maximum=MAX_CHUNK),
    )


def build_mamba2(fields: Fields) -> Model:
    """Build a Mamba-2 model from a Transformers `Mamba2Config`: layers of one mixer each.

    Defaults: expand 2, convolution bias, no projection bias, untied.
    """
    hidden = fields.hidden()
    scan = scan_shape(fields, heads="num_heads", head_dim="head_dim", state="state_size")
    inner = scan.heads * scan.head_dim
    expand = fields.integer("expand", default=2, maximum=64)
    if inner != expand * hidden:
        fields.fail(
            f"num_heads x head_dim = {inner} is not expand x hidden_size = {expand * hidden}",
            hint="the three fields describe one width",
        )
    shape = MambaShape(
        scan=scan,
        kernel=fields.integer("conv_kernel", maximum=MAX_KERNEL),
        conv_bias=fields.flag("use_conv_bias", default=True),
        proj_bias=fields.flag("use_bias", default=False),
    )
    block = mixer_block(
        "mamba", hidden=hidden, mixer=mamba2_operators(hidden=hidden, shape=shape, source="norm")
    )
    return configured_model(fields, layers=[block] * fields.layers())


def build_mamba(fields: Fields) -> Model:
    """Build a Mamba-1 model from a `MambaConfig`; default: conv bias, no other bias, tied."""
    hidden = fields.hidden()
    _, rank = fields.find("time_step_rank")
    shape = SelectiveShape(
        inner=fields.integer(
            "intermediate_size",
            default=fields.integer("expand", default=2, maximum=64) * hidden,
            maximum=MAX_FFN,
        ),
        state=fields.integer("state_size", maximum=MAX_STATE),
        rank=-(-hidden // 16)
        if rank == "auto"
        else fields.integer("time_step_rank", maximum=MAX_HIDDEN),
        kernel=fields.integer("conv_kernel", maximum=MAX_KERNEL),
        conv_bias=fields.flag("use_conv_bias", default=True),
        proj_bias=fields.flag("use_bias", default=False),
    )
    block = mixer_block(
        "mamba", hidden=hidden, mixer=mamba1_operators(hidden=hidden, shape=shape, source="norm")
    )
    return configured_model(fields, layers=[block] * fields.layers(), tied=True)
