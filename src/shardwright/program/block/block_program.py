"""A lowered block: kernels, communication, saved tensors and parameters of each phase.

Sizes are symbolic: the structure depends only on how operator classes are cut, and
`symbolic_sizes.evaluate` evaluates the sizes on arrays of degrees. The cost model, the simulator
and an executor read this and nothing else.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import AttentionShape, Operator, ScanShape
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.model.tensors_without_gradient import runs_backward
from shardwright.program.block.symbolic_sizes import Size


class Phase(StrEnum):
    """Phase of a microbatch: forward (F), input gradient (I) or weight gradient (W).

    Full backward is I then W; recompute runs the kernels of F again.
    """

    F = "F"
    I = "I"  # noqa: E741 - PyTorch's letter
    W = "W"


class KernelKind(StrEnum):
    """Families of kernels, one cost formula each."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped-gemm"
    ATTENTION = "attention"
    SCAN = "scan"
    ELEMENT = "element"


class Exposure(StrEnum):
    """Kernels of the same phase that can hide a communication; BLOCKING = none."""

    BLOCKING = "blocking"
    BESIDE_GEMM = "beside-gemm"
    BESIDE_WEIGHT_GRADIENT = "beside-weight-gradient"
    BESIDE_INPUT_GRADIENT = "beside-input-gradient"
    BESIDE_CORE = "beside-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """One kernel of an operator in a phase, with its shape.

    Args:
        m, n, k: GEMM: the forward (m x k) times (k x n), n as a sum of parts; of one group for
            GROUPED_GEMM, run `groups` times. A linear operator's I is (m x n)(n x k) and its W is
            (n x m)(m x k): the phase says which.
        apart: each group is a launch of its own.
        adapter: a product beside the operator's own.
        read, written: ELEMENT: bytes.
        native: one kernel in any framework.
        one_pass: a single kernel that moves exactly these bytes.
        by_row: in Triton, one program a row.
        accumulate: the GEMM adds into an fp32 copy of its n x k result.
        tokens, context: ATTENTION and SCAN: local query tokens; keys of a whole sequence.
        heads: ATTENTION and SCAN: local heads.
        passed: keys come round a ring, one member's part at a time.
        attention, scan: shape of the operator's attention or scan.
        further: number of small kernels beside this one, whose bytes are not counted; each costs
            its launch.
        gathered: (axis, members) of the gather of a quantised operand: each member cast its own
            part.
    """

    operator: str
    phase: Phase
    kernel: KernelKind
    m: Size | None = None
    n: tuple[Size, ...] = ()
    k: Size | None = None
    groups: Size | None = None
    read: tuple[Size, ...] = ()
    written: tuple[Size, ...] = ()
    apart: bool = False
    adapter: bool = False
    one_pass: bool = False
    accumulate: bool = False
    native: bool = False
    by_row: bool = False
    tokens: Size | None = None
    context: int = 0
    passed: bool = False
    heads: Size | None = None
    attention: AttentionShape | None = None
    scan: ScanShape | None = None
    gathered: tuple[str, int] = ("", 1)
    further: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One communication of a block in a phase, over the process group of `axes`.

    Args:
        volume: bytes of the full buffer as in
            `collectives.algorithm_costs.algorithm_protocol.Collective`.
        behind: the move carries the operator's output (behind its kernels in F, before them in I);
            else its input, the other way round.
        beside: operator whose GEMM can hide the move (the one that makes a reduced tensor, or that
            reads a gathered one); empty = `operator`.
        hops: axis whose degree minus one is the number of sends (ring exchange); empty = once.
        copies: the volume holds so many copies of each token, one for each expert that the token
            visits; a device or network unit that several of them go to receives one. 0 = every byte
            is sent.
        groups: (at most so many, of so many) equal runs of experts that contain a token's experts;
            (0, 0) = any.
        rows: bytes that travel for each byte of the volume, where every copy carries a row over all
            experts of its island; 1 = the volume alone.
        group: devices, counted from the stage's first; empty = the group of `axes`.
        narrow: the tensor is quantised before the move.
    """

    operator: str
    phase: Phase
    kind: Collective
    axes: tuple[str, ...]
    volume: tuple[Size, ...]
    exposure: Exposure
    behind: bool = False
    beside: str = ""
    hops: str = ""
    copies: int = 0
    rows: int = 1
    groups: tuple[int, int] = (0, 0)
    group: tuple[int, ...] = ()
    narrow: bool = False


class Recomputable(StrEnum):
    """Recompute modes that drop a saved tensor: only `full`, or `selective` too.

    NEVER: for the block's own input. NONE_AND_FULL: only `selective` keeps the tensor, by the
    choice of a policy.

    NONE_AND_FULL: only `selective` keeps the tensor, by the choice of a policy.
    """

    NEVER = "never"
    FULL = "full"
    SELECTIVE = "selective"
    NONE_AND_FULL = "none-and-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor saved from a microbatch's forward for its backward.

    It lives from F to I or W. With its bytes, and the recompute modes that drop it.

    Args:
        host: where `selective` keeps the tensor, it waits in host memory.
        parked: bytes of the tensor that wait in host memory, and none on the device, where `full`
            keeps it.
    """

    tensor: str
    volume: Size
    dropped: Recomputable
    host: bool = False
    parked: Size | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameter:
    """Local elements of a parameter on one device, its class and how its gradient is summed.

    Args:
        tied: another block stores the parameter.
        summed_along: axes beside dp and cp along which devices hold the same elements and compute
            different terms of their gradient.
        coarse: (runs, axes) of each extent that axes cut: where their degree does not divide the
            runs (key heads under tp), several devices hold a run.
        narrow: a recipe of 8 or 4 bits quantises the parameter.
        backward: the parameter's operator has a backward.
    """

    parameter: str
    elements: Size
    klass: ParameterClass
    trainable: bool
    tied: bool
    summed_along: tuple[str, ...] = ()
    coarse: tuple[tuple[int, tuple[str, ...]], ...] = ()
    narrow: bool = False
    backward: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """Kernels, communication, saved tensors and parameters of one block under one structure.

    The hash leaves out fields that are long and seldom differ alone.

    Args:
        output_volume: bytes of the block's output on one device, as it crosses a pipeline border.
        constant: names of tensors without a gradient (`model.tensors_without_gradient`).
    """

    block: str
    works: tuple[BlockWork, ...] = field(hash=False)
    moves: tuple[Move, ...]
    saved: tuple[SavedTensor, ...] = field(hash=False)
    stored: tuple[LocalParameter, ...] = field(hash=False)
    output_volume: Size
    operators: tuple[Operator, ...] = field(hash=False)
    constant: frozenset[str] = frozenset()

    @property
    def has_backward(self) -> bool:
        """True if some operator of the block computes a gradient."""
        return any(runs_backward(operator, self.constant) for operator in self.operators)


def move_on_axis(
    target: Operator,
    phase: Phase,
    kind: Collective,
    axis: str,
    volume: tuple[Size, ...],
    exposure: Exposure,
    group: tuple[int, ...] = (),
) -> Move:
    """Move of `volume` bytes for `target` over the process group of one axis, or `group`."""
    return Move(
        operator=target.name,
        phase=phase,
        kind=kind,
        axes=(axis,),
        volume=volume,
        exposure=exposure,
        group=group,
    )
