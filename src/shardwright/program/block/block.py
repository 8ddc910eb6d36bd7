"""A lowered block: operator tasks, communication, saved tensors and parameters, for each phase;
sizes stay symbolic.

The structure depends only on how operator classes are cut; sizes are evaluated on arrays of degrees
(`program.block.sizes`). The cost model, the simulator and an executor read this and nothing else.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.lazy_dataclass import dataclass
from shardwright.model.gradients import runs_backward
from shardwright.model.ir.operator import AttentionShape, Operator, ScanShape
from shardwright.model.ir.tensor import ParameterClass
from shardwright.program.block.sizes import Size


class Phase(StrEnum):
    """Forward, input gradient, weight gradient. Full backward is I then W; recompute runs F's tasks
    again.
    """

    F = "F"
    I = "I"  # noqa: E741 - PyTorch's letter
    W = "W"


class Kernel(StrEnum):
    """Families of kernels, one cost formula each."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped-gemm"
    ATTENTION = "attention"
    SCAN = "scan"
    ELEMENT = "element"


class Exposure(StrEnum):
    """How communication meets the compute of its phase."""

    BLOCKING = "blocking"
    BESIDE_GEMM = "beside-gemm"
    BESIDE_WEIGHT_GRADIENT = "beside-weight-gradient"
    BESIDE_INPUT_GRADIENT = "beside-input-gradient"
    BESIDE_CORE = "beside-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """One kernel of an operator in a phase.

    Args:
        m, n, k: GEMM: the forward (m x k) times (k x n), n as a sum of parts; of one group for
            GROUPED_GEMM, run `groups` times. A linear operator's I is (m x n)(n x k) and its W is
            (n x m)(m x k): the phase says which.
        apart: each group is a launch of its own.
        adapter: a product beside the operator's own.
        read, written: ELEMENT: bytes.
        native: one kernel in any framework;
        one_pass: a single kernel that moves exactly these.
        by_row: in Triton, one program a row.
        accumulate: GEMM adds into an fp32 copy of its n x k result.
        tokens, context: ATTENTION and SCAN: local query tokens; keys of a whole sequence. heads,
            kv_heads: local.
        passed: keys come round a ring, one member's part at a time.
        core: the operator's attention or scan shape.
        further: small kernels beside this one, whose bytes are not counted: they cost their
            launches.
        gathered: the operand that a member quantises was gathered in few bits, along this axis or
            by so many: each cast its own part.
    """

    operator: str
    phase: Phase
    kernel: Kernel
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
    """One communication of a block in a phase over the group of `axes`.

    Args:
        volume: bytes of the full buffer as in `collectives.Collective`.
        behind: it carries the operator's output (behind its kernels in F, before them in I); else
            its input, the other way round.
        beside: operator whose GEMM it meets (the one that makes a reduced tensor, that reads a
            gathered one); empty = `operator`.
        hops: axis whose degree minus one is the number of sends (ring exchange); empty = once.
        copies: the volume holds so many copies of each token, one for each expert that it visits,
            and a device or unit of the network that several of them go to gets one; 0 = every byte
            is sent.
        groups: (at most so many, of so many) equal runs of experts that a token's lie in; (0, 0) =
            any.
        rows: bytes that travel for each of the volume's where every copy carries a row over all
            experts of its island, as many more as the group's experts would be; 1 = the volume's
            own alone.
        group: devices, counted from the stage's first; empty = the group of `axes`.
        narrow: quantised before.
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
    """Which recompute modes drop a saved tensor: only `full`, or `selective` too; never for the
    block's own input. NONE_AND_FULL: only `selective` keeps it, as a policy's own choice.
    """

    NEVER = "never"
    FULL = "full"
    SELECTIVE = "selective"
    NONE_AND_FULL = "none-and-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor that lives from F to I or W of its microbatch: bytes, and which recompute modes drop
    it.

    `host`: where `selective` keeps it, it waits in host memory. `parked`: where `full` keeps it,
    this much of it waits there, and none on the device.
    """

    tensor: str
    volume: Size
    dropped: Recomputable
    host: bool = False
    parked: Size | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A parameter's local elements and its class.

    Args:
        tied: another block stores it.
        summed_along: axes beside dp and cp along which devices hold the same elements and compute
            different terms of their gradient.
        coarse: (runs, axes) of each extent that axes cut: where their degree does not divide the
            runs (key heads under tp), several devices hold a run.
        narrow: a recipe of few bits quantises it.
        backward: its operator has a backward.
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
    """One block under one structure. What its hash leaves out is long, and seldom differs alone.

    Args:
        output_volume: bytes of its output on one device, as it crosses a pipeline border.
        constant: tensors without a gradient (`model.gradients`).
    """

    block: str
    works: tuple[BlockWork, ...] = field(hash=False)
    moves: tuple[Move, ...]
    saved: tuple[Saved, ...] = field(hash=False)
    stored: tuple[Stored, ...] = field(hash=False)
    output_volume: Size
    operators: tuple[Operator, ...] = field(hash=False)
    constant: frozenset[str] = frozenset()

    @property
    def has_backward(self) -> bool:
        """Some operator has something to do in backward."""
        return any(runs_backward(operator, self.constant) for operator in self.operators)
