"""Host seconds of launching a block's kernels, and seconds that the device waits for them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.cost.kernels.accelerator_rates import OPERATOR_S, Machine
from shardwright.cost.kernels.quantization_passes import quantise_kernels
from shardwright.model.ir.operator import OperatorClass
from shardwright.program.block.block_program import BlockProgram, BlockWork, KernelKind, Move, Phase
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.block.symbolic_sizes import Degrees, evaluate
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Capture, ElementKernels

EAGER_KERNELS = 3
"""Kernels of one element-wise operator that nothing fuses (an eager norm, rotary embedding or
activation)."""
DISPATCH_SHARE = 20 / 132
"""Share of the multiprocessors that dispatch and combine take from kernels beside them.

Source: DeepEP runs on 20 of an H100's 132 multiprocessors unless told otherwise; HybridEP on 16 to
32 of 148.
"""
MOVE_KERNELS = 2
"""Launches of a collective: its kernel, and the event that orders it."""


_REPLAYED = {
    Capture.ROUTER: (OperatorClass.ROUTER,),
    Capture.MAMBA: (OperatorClass.SSM,),
    Capture.ATTENTION: (
        OperatorClass.STREAM,
        OperatorClass.ATTN,
        OperatorClass.CORE,
        OperatorClass.SSM,
    ),
}


def replayed(klass: OperatorClass, *, routed: bool, capture: Capture) -> bool:
    """True if a captured CUDA graph replays an operator's kernels, so that the host launches none.

    A layer's norms and residuals lie in its mixer's graph; where only state-space mixers are
    captured, those of other layers are launched, which counts a state-space layer's own norm and
    residual as launched too.
    """
    if capture is Capture.ITERATION:
        return True
    if capture is Capture.ATTENTION_ROUTER:
        return not routed
    return klass in _REPLAYED.get(capture, ())


def launches(
    work: BlockWork, degrees: Degrees, *, machine: Machine, runtime: Runtime
) -> FloatArray:
    """Number of kernels that the host launches for `work`: one, or one a local expert, and casts.

    Forward quantises the input, the input gradient the output's gradient; the weight gradient finds
    both. Weights are quantised once a step. All experts' operands are quantised by one call, and so
    are a recipe's further kernels (`further_launches`). A GEMM of each expert is a call of cuBLAS
    of its own: 34 us on a host of B200 (NVIDIA/TransformerEngine#3134: 0.272 ms for eight small
    ones).
    """
    n = np.shape(degrees["mbs"])[0]
    if work.kernel is KernelKind.ELEMENT:
        if work.apart and work.groups is not None:
            return np.asarray(evaluate(work.groups, degrees), dtype=np.float64)
        return np.full(
            n,
            EAGER_KERNELS if runtime.element_kernels is ElementKernels.EAGER else 1,
            dtype=np.float64,
        )
    if work.kernel not in (KernelKind.GEMM, KernelKind.GROUPED_GEMM):
        return np.ones(n)
    kernels_of_operand = 1 + _quantises(work, machine)
    if not work.apart or work.groups is None:
        return np.full(n, kernels_of_operand, dtype=np.float64)
    if runtime.fused_experts:
        return np.ones(n)
    return np.asarray(kernels_of_operand - 1 + evaluate(work.groups, degrees), dtype=np.float64)


def further_launches(
    work: BlockWork, degrees: Degrees, *, machine: Machine, runtime: Runtime
) -> FloatArray:
    """Number of quantising kernels, beyond the first, that one call launches for all local experts.

    One after another, of all local experts, but for the first.

    Source: Transformer Engine, pytorch/csrc/quantizer.cpp (one call of a quantiser launches all its
    kernels), and pytorch/module/grouped_linear.py (`tex.split_quantize`, before it
    `fused_multi_cast_transpose`: one call for all experts; pull request 1072).
    """
    n = np.shape(degrees["mbs"])[0]
    kernels = float(quantise_kernels(machine) * _quantises(work, machine))
    if runtime.fused_experts and work.apart:
        return np.zeros(n)
    experts = (
        evaluate(work.groups, degrees) if work.apart and work.groups is not None else np.ones(n)
    )
    return np.asarray(np.maximum(kernels * experts - 1.0, 0.0), dtype=np.float64)


def _quantises(work: BlockWork, machine: Machine) -> bool:
    """True if a forward or input-gradient GEMM needs a kernel that quantises an operand."""
    product = work.kernel in (KernelKind.GEMM, KernelKind.GROUPED_GEMM)
    return product and machine.compute.bits < machine.half_bits and work.phase is not Phase.W


class HostClock:
    """Host and device seconds of one block in three parts, to find where the device waits.

    Forward up to the experts, forward from there on, and backward.

    A runtime that reads the routing on the host starts the experts' launches when the device has
    come that far, so each part lasts the longer of both and the parts add up; otherwise the host
    runs ahead over a whole pass. Where it waits for the device before and after each
    tensor-parallel collective (`Runtime.tp_synchronises`), a part falls into the segments between
    them, each of which lasts the longer of both, and the host launches nothing beside a collective.
    Kernels behind the last collective join the next layer's start. Where each launch waits for its
    kernel (`Runtime.launches_block`), host and device take turns.
    """

    def __init__(
        self, program: BlockProgram, degrees: Degrees, *, machine: Machine, runtime: Runtime
    ) -> None:
        self._degrees, self._machine, self._runtime = degrees, machine, runtime
        self._quantised = machine.compute.bits < machine.half_bits
        self._routed = {o.name for o in program.operators if is_routed(o)}
        self._klass = {o.name: o.klass for o in program.operators}
        # Where every launch is waited for, so are those around collectives.
        self._segment = (
            segments(program) if runtime.tp_synchronises and not runtime.launches_block else {}
        )
        n = np.shape(degrees["mbs"])[0]
        self._host, self._device, self._alone = np.zeros((3, n)), np.zeros((3, n)), np.zeros((3, n))
        self._late = np.zeros((3, 1 + max(self._segment.values(), default=0), n))

    def map_sums(self, change: Callable[..., FloatArray], *others: HostClock) -> HostClock:
        """New clock whose sums are `change` of this clock's sums and those of the `others`."""
        changed_clock = copy(self)
        for name in ("_host", "_device", "_late", "_alone"):
            setattr(
                changed_clock,
                name,
                change(getattr(self, name), *(getattr(other, name) for other in others)),
            )
        return changed_clock

    def _part(self, operator: str, phase: Phase) -> int:
        """Part a kernel counts in: 2 backward, 1 experts if the host reads routing, else 0."""
        if phase is not Phase.F:
            return 2
        return 1 if operator in self._routed and self._runtime.reads_routing else 0

    def _host_launches(self, operator: str) -> bool:
        """True if the host launches an operator's kernels: no CUDA graph replays them."""
        routed = operator in self._routed
        return not replayed(self._klass[operator], routed=routed, capture=self._runtime.capture)

    def kernel(self, work: BlockWork, seconds: FloatArray) -> None:
        """Add a kernel's launch seconds on the host and its `seconds` on the device to the sums."""
        host: FloatArray | float = 0.0
        if self._host_launches(work.operator):
            machine, runtime = self._machine, self._runtime
            host = (
                launches(work, self._degrees, machine=machine, runtime=runtime)
                * machine.host_launch_s
            )
            host = host + work.further * OPERATOR_S
            if self._quantised:
                host = (
                    host
                    + further_launches(work, self._degrees, machine=machine, runtime=runtime)
                    * machine.accelerator.launch_s
                )
        self._add(work.operator, work.phase, self._part(work.operator, work.phase), host, seconds)

    def _add(
        self, operator: str, phase: Phase, part: int, host: FloatArray | float, device: FloatArray
    ) -> None:
        """Add host and device seconds to part `part` and to the segment between collectives."""
        self._host[part] += host
        self._device[part] += device
        if self._segment:
            self._late[part, self._segment[operator, phase is Phase.F]] += host - device

    def move(self, move: Move, phase: Phase, seconds: FloatArray, *, hidden: FloatArray) -> None:
        """Add a collective's launch seconds on the host and its exposed `seconds` on the device.

        Tokens on their way to the experts are awaited before the experts are launched.

        A group of one member sends nothing: it has neither exposed nor `hidden` seconds.
        """
        part = (
            self._part(move.operator, phase)
            if move.behind
            else min(self._part(move.operator, phase), 2 if phase is not Phase.F else 0)
        )
        launch: FloatArray | float = 0.0
        if self._host_launches(move.operator):
            launch = np.where(
                seconds + hidden > 0.0, MOVE_KERNELS * self._machine.host_launch_s, 0.0
            )
        self._add(move.operator, phase, part, launch, seconds)
        if self._segment and _synchronises(move):
            self._alone[part] += seconds
            self._late[part, self._segment[move.operator, phase is Phase.F]] += seconds

    def exposed(self) -> tuple[FloatArray, FloatArray]:
        """(forward, backward) seconds of launch waits: host beyond device, or all if it blocks.

        Sum over parts, or their segments, of max(0, host - device); all of the host's where
        launches block.
        """
        late = (
            self._host
            if self._runtime.launches_block
            else np.maximum(self._host - self._device, 0.0)
        )
        if self._segment:
            late = np.where(self._alone > 0.0, np.maximum(self._late, 0.0).sum(axis=1), late)
        return late[0] + late[1], late[2]


def _synchronises(move: Move) -> bool:
    """True if a collective is tensor-parallel: the host waits for the device around these."""
    return move.axes[0] == "tp"


def segments(program: BlockProgram) -> dict[tuple[str, bool], int]:
    """By (operator, forward): number of tensor-parallel collectives of the pass before its kernels.

    Kernels behind the last collective of a pass are in the first segment of the next layer.
    Backward takes the operators the other way round, an operator's two gradients together.
    """
    segment_of: dict[tuple[str, bool], int] = {}
    for forward in (True, False):
        collectives_of_pass = [
            m for m in program.moves if _synchronises(m) and (m.phase is Phase.F) is forward
        ]
        count = 0
        for operator in program.operators if forward else reversed(program.operators):
            moves_of_operator = [m for m in collectives_of_pass if m.operator == operator.name]
            # A move behind an operator's kernels forward lies before them backward.
            before = sum(m.behind is not forward for m in moves_of_operator)
            segment_of[operator.name, forward] = (count + before) % max(len(collectives_of_pass), 1)
            count += len(moves_of_operator)
    return segment_of


class PairedLayer:
    """Seconds of one layer's forward overlapped with another microbatch's backward.

    On two streams (compute and communication), collected for the pair's three steps.

    =============  ====================  ======================================  ==================
    communication  combine, backward     dispatch, forward and backward          combine, forward
    beside         the layer but its     the experts, forward and backward       the layer but its
                   experts, forward                                              experts, backward
    =============  ====================  ======================================  ==================

    Each step ends when both streams have: the experts' backward needs the combine's, the next
    layer's forward needs the combine. Shared experts are computed with attention. Source:
    Megatron-Core, core/models/common/model_chunk_schedule_plan.py at 01cf4fb552b3
    (`TransformerLayerSchedulePlan.run`) and core/models/gpt/fine_grained_callables.py. Leaves out
    the order inside the second step, and that the first and last microbatches have no partner.
    """

    def __init__(self, program: BlockProgram, *, rows: int) -> None:
        self._routed = {o.name for o in program.operators if is_routed(o)}
        self._compute, self._moved = np.zeros((3, rows)), np.zeros((3, rows))

    def map_sums(self, change: Callable[..., FloatArray], *others: PairedLayer) -> PairedLayer:
        """New pair whose sums are `change` of this pair's sums and those of the `others`."""
        changed_pair = copy(self)
        changed_pair._compute = change(self._compute, *(other._compute for other in others))
        changed_pair._moved = change(self._moved, *(other._moved for other in others))
        return changed_pair

    def kernel(self, operator: str, phase: Phase, seconds: FloatArray) -> None:
        """Add seconds of a kernel to its part: forward outside experts, experts, or backward."""
        self._compute[1 if operator in self._routed else 0 if phase is Phase.F else 2] += seconds

    def move(self, phase: Phase, seconds: FloatArray, *, behind: bool) -> None:
        """Add seconds of a dispatch of tokens to experts, or of a combine (`behind`)."""
        self._moved[1 if not behind else 2 if phase is Phase.F else 0] += seconds

    def exposed(self, *, late: FloatArray) -> FloatArray:
        """Seconds of dispatch and combine not hidden by the other microbatch's kernels and `late`.

        Args:
            late: seconds that the device waits for launches, nearly all of them the experts'.
        """
        compute = self._compute.copy()
        compute[1] += late
        return np.asarray(exposed_traffic(compute, self._moved).sum(axis=0))


def exposed_traffic(compute: FloatArray, moved: FloatArray) -> FloatArray:
    """Seconds max(share x moved, moved - (1 - share) x compute), at most moved: exposed traffic.

    `moved` seconds of traffic, `compute` seconds of kernels.

    max(share x moved, moved - (1 - share) x compute, 0): the traffic's kernels take
    `DISPATCH_SHARE` of the device for as long as they run, and traffic that outlasts the kernels
    beside it is waited for.
    """
    return np.minimum(
        np.maximum(DISPATCH_SHARE * moved, moved - (1.0 - DISPATCH_SHARE) * compute), moved
    )
