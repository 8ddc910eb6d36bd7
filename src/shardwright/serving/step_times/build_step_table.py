"""Build a worker's step table: every block is priced for all numbers of tokens at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.inference.block_forward_without_context_attention import (
    PARTS,
    ForwardSeconds,
    forward_seconds,
)
from shardwright.cost.inference.decode_attention import decode_columns
from shardwright.cost.inference.engine_collectives import engine_networks
from shardwright.cost.inference.gemm_rates_and_number_formats import ServingGemms
from shardwright.cost.inference.measured_kernel_library_of_engine import expert_library, library_of
from shardwright.cost.inference.prompt_attention import prompt_seconds
from shardwright.cost.kernels.accelerator_rates import Machine, machine_of
from shardwright.cost.kernels.state_space_scan import scan_seconds
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.fitted_serving_constants import ServingConstants
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.absorbed_latent_attention_sizes import latent_of
from shardwright.model.blocks.multi_token_prediction import PREDICTORS
from shardwright.model.decode_state import Lifetime, decode_states
from shardwright.model.ir.block import TEXT, Block
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Worker
from shardwright.serving.step_times.step_table import StepTable

MULTIPLIES_IN: Final = {
    NumberFormat.FP32: Dtype.FP32,
    NumberFormat.BF16: Dtype.BF16,
    NumberFormat.FP16: Dtype.FP16,
    NumberFormat.FP8: Dtype.FP8,
    NumberFormat.INT8: Dtype.FP8,
    NumberFormat.NVFP4: Dtype.FP4,
    NumberFormat.MXFP4: Dtype.FP4,
}
"""Matrix-multiplication units for each number format.

Devices have as many units for 8-bit integers as for 8-bit floats.
"""
STATE_BYTES: Final = 4
MAX_PROMPT_TOKENS: Final = 2**17


def step_table(problem: ServingProblem, worker: Worker) -> StepTable:
    """Build a worker's step table: seconds of an iteration by tokens, sequences, prompt lengths.

    See `StepTable` for the sum of its columns. The engine is that of `problem_on_worker`. Stages
    have equal shares of the seconds: layers are cut evenly.
    """
    engine, model, constants = problem.engine, problem.model, problem.constants
    products = products_of(problem)
    machine, networks = products.machine, engine_networks(problem.cluster, engine)
    device = problem.cluster.node.accelerator.name
    prompt_factor, decode_factor = (
        constants.in_place(kernels, device) for kernels in ("prompts", "answers")
    )
    tokens = _token_points(problem, worker)
    sequences = _sample_points(worker.sequences or engine.max_sequences)
    lengths = np.concatenate([[0], _sample_points(MAX_PROMPT_TOKENS, smallest=64)])
    base, head = np.zeros((4, len(tokens))), np.zeros((4, len(sequences)))
    start, slope, prompts = (
        np.zeros(len(sequences)),
        np.zeros(len(sequences)),
        np.zeros(len(lengths)),
    )
    windows: dict[int, FloatArray] = {}
    for block, count in block_uses(model, draft_tokens=worker.draft_tokens):
        token_counts = sequences * (worker.draft_tokens + 1) if block.has_head else tokens
        kernel_seconds = forward_seconds(
            block,
            worker_rows(worker, token_counts),
            products=products,
            networks=networks,
            skew=problem.job.expert_skew,
            gap_s=constants.replayed_launch_s,
        )
        seconds = count * _launch_seconds(kernel_seconds, block, problem)
        if block.has_head:
            head += seconds
            continue
        base += seconds
        core = _ContextCost.for_block(block, problem, worker, machine)
        start += count * core.state(sequences)
        prompts += count * prompt_factor * core.prompts(lengths)
        for window, (constant_s, per_token) in core.decoding(sequences).items():
            start += count * decode_factor * constant_s
            slope_seconds = decode_factor * per_token
            if window:
                windows[window] = (
                    windows.get(window, np.zeros(len(sequences))) + count * slope_seconds
                )
            else:
                slope += count * slope_seconds
    window_sizes = sorted(windows)
    replayed, launched, replaying, launching = base
    # Between two iterations lie the seconds of one stage, so the host's work overlaps with as many
    # seconds in each of them, or is added to them.
    host_rounds = worker.pp if engine.asynchronous or engine.stages_wait else 1
    return StepTable(
        tokens=tokens,
        replayed=monotone(replayed),
        launched=monotone(np.maximum(launched, replayed)),
        replaying=monotone(replaying),
        launching=monotone(launching),
        captured=np.array(engine.captured, dtype=np.int64),
        piecewise=engine.piecewise,
        sequences=sequences,
        head=monotone(head[0]),
        decode_start=monotone(start),
        decode_slope=slope,
        windows=np.array(window_sizes, dtype=np.int64),
        window_slope=np.array([windows[w] for w in window_sizes]).reshape(
            len(window_sizes), len(sequences)
        ),
        prompt_tokens=lengths.astype(np.int64),
        prompt_seconds=monotone(prompts),
        host_s=constants.host_iteration_s * host_rounds,
        host_sequence_s=constants.host_sequence_s * host_rounds,
        answer_s=0.0,
        asynchronous=engine.asynchronous,
        draft_tokens=worker.draft_tokens,
        stages=worker.pp,
        pads=engine.pads,
    )


def monotone(values: FloatArray) -> FloatArray:
    """Make values non-decreasing: mean of the running maximum and the minimum still to come."""
    return np.asarray(
        (np.maximum.accumulate(values) + np.minimum.accumulate(values[::-1])[::-1]) / 2
    )


def block_uses(model: Model, *, draft_tokens: int) -> tuple[tuple[Block, int], ...]:
    """(block, runs in one iteration) of the text model; MTP blocks run once a draft token."""
    uses: dict[int, int] = {}
    for run in model.runs:
        block = model.blocks[run.block]
        count = run.count if block.name not in PREDICTORS else draft_tokens
        if block.sequence == TEXT and count:
            uses[run.block] = uses.get(run.block, 0) + count
    return tuple((model.blocks[number], count) for number, count in uses.items())


def products_of(problem: ServingProblem) -> ServingGemms:
    """Matrix multiplication rates of the cluster's device in all number formats of the job."""
    device, precision = problem.cluster.node.accelerator, problem.job.precision
    classes = (precision.attention, precision.mlp, precision.experts, precision.head)
    formats = {NumberFormat.BF16, *(number_format.activations for number_format in classes)}
    return ServingGemms(
        machine=_machine(device, NumberFormat.BF16),
        by_format={
            number_format: _machine(device, number_format) for number_format in sorted(formats)
        },
        precision=precision,
        library=library_of(problem.engine),
        expert_library=expert_library(problem.engine),
    )


def _machine(device: Accelerator, multiplied: NumberFormat) -> Machine:
    """The device with its compute units and kernels for a number format."""
    return machine_of(
        device,
        compute=MULTIPLIES_IN.get(multiplied, Dtype.BF16),
        attention=AttentionKernel.FLASH_3,
        elements=ElementKernels.FUSED,
    )


def worker_rows(worker: Worker, tokens: IntArray) -> DegreeRows:
    """A worker's pipeline stage as cost-table rows, one for each number of tokens of a rank.

    Tensor parallel ranks are side by side; ``mbs`` = tokens of a rank.
    """
    inside = worker.tp * worker.cp
    fixed = {
        "tp": worker.tp,
        "sp": 0,
        "cp": worker.cp,
        "ulysses": 1,
        "gather": 0,
        "ep": worker.ep,
        "etp": worker.etp,
        "dp": worker.dpa,
        "pp": worker.pp,
        "s_tp": 1,
        "s_cp": worker.tp,
        "s_dp": inside,
        "s_pp": worker.stage_devices,
    }
    return DegreeRows(
        columns={"mbs": tokens}
        | {name: np.full(len(tokens), value, dtype=np.int64) for name, value in fixed.items()}
    )


def _launch_seconds(
    kernel_seconds: ForwardSeconds, block: Block, problem: ServingProblem
) -> FloatArray:
    """(4, t) seconds of a block: replayed, launched; host work of replaying, of launching.

    The host takes time for each kernel that Python launches. Where an engine compiles the piece
    between two attention cores (the pieces that it captures), it takes time for each piece and its
    kernels, except experts, which Python launches. Where captured pieces are replayed, it takes
    time for each piece alone.
    """
    constants, engine = problem.constants, problem.engine
    total = engine_seconds(
        kernel_seconds, constants, accelerator=problem.cluster.node.accelerator.name
    )
    pieces = (
        sum(o.kind is OperatorKind.ATTENTION or o.scan is not None for o in block.operators)
        * constants.host_piece_s
    )
    launches = kernel_seconds.kernels * constants.host_launch_s
    if engine.piecewise:
        compiled = kernel_seconds.compiled * constants.compiled_launch_s
        launches = pieces + compiled + kernel_seconds.opaque * constants.host_launch_s
    replays = np.full(len(total), 0.0 if engine.full_graphs else pieces)
    return np.stack(
        [
            np.maximum(total, replays),
            np.maximum(total, launches),
            replays,
            np.broadcast_to(launches, total.shape),
        ]
    )


def engine_seconds(
    kernel_seconds: ForwardSeconds, constants: ServingConstants, *, accelerator: str
) -> FloatArray:
    """(t,) seconds of a block's kernels, each part times its measured in-engine factor."""
    return np.asarray(
        np.array([constants.in_place(part, accelerator) for part in PARTS])
        @ kernel_seconds.seconds,
        dtype=np.float64,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ContextCost:
    """Costs of a block that depend on the context lengths: attention, scans and states."""

    block: Block
    machine: Machine
    worker: Worker
    kv: NumberFormat
    library: str

    @staticmethod
    def for_block(
        block: Block, problem: ServingProblem, worker: Worker, machine: Machine
    ) -> _ContextCost:
        """Create the attention and state costs of a block, which grow with context, on a worker."""
        return _ContextCost(
            block=block,
            machine=machine,
            worker=worker,
            kv=problem.job.precision.kv,
            library=library_of(problem.engine),
        )

    def _cores(self) -> list[Operator]:
        """The block's self-attention operators."""
        return [
            o for o in self.block.operators if o.attention is not None and not o.attention.cross
        ]

    def decoding(self, sequences: IntArray) -> dict[int, tuple[FloatArray, FloatArray]]:
        """Decode seconds by window (0 = none): (start, slope), (s,) each, slope a context token.

        (s,) seconds, and (s,) seconds a context token. Keys chosen by a scorer count as a window of
        as many tokens.
        """
        latent = latent_of(self.block)
        by_window: dict[int, tuple[FloatArray, FloatArray]] = {}
        for operator in self._cores():
            shape = operator.attention
            assert shape is not None
            if operator.kind is OperatorKind.ATTENTION and latent is not None:
                shape = replace(latent.core(), selected=shape.selected, window=shape.window)
            tp = self.worker.tp if operator.kind is OperatorKind.ATTENTION else 1
            start, slope = decode_columns(
                self.machine,
                shape,
                kv=self.kv,
                heads=-(-shape.heads // tp),
                kv_heads=-(-shape.kv_heads // tp),
                sequences=sequences,
                queries=self.worker.draft_tokens + 1,
                library=self.library,
            )
            window = shape.window or shape.selected
            previous = by_window.get(window, (np.zeros(len(sequences)), np.zeros(len(sequences))))
            by_window[window] = (previous[0] + start, previous[1] + slope)
        return by_window

    def prompts(self, lengths: IntArray) -> FloatArray:
        """(p,) seconds of the block's attention and scans over whole prompts, without launches."""
        total = np.zeros(len(lengths))
        for operator in self._cores():
            assert operator.attention is not None
            shape = operator.attention
            heads = (
                -(-shape.heads // self.worker.tp)
                if operator.kind is OperatorKind.ATTENTION
                else shape.heads
            )
            total += (
                prompt_seconds(self.machine, shape, heads=heads, lengths=lengths) / self.worker.cp
            )
        for operator in self.block.operators:
            if operator.scan is not None:
                local_heads = np.full(len(lengths), -(-operator.scan.heads // self.worker.tp))
                spent = scan_seconds(
                    self.machine,
                    operator.scan,
                    tokens=np.maximum(lengths, 1),
                    heads=local_heads,
                    backward=False,
                )
                total += np.where(lengths > 0, spent - 4 * self.machine.accelerator.launch_s, 0.0)
        return total

    def state(self, sequences: IntArray) -> FloatArray:
        """(s,) seconds to read and write the recurrent states of `sequences` in a block."""
        device = self.machine.accelerator
        elements = sum(
            living.elements(self.worker.tp)
            for living in decode_states(self.block)
            if living.lifetime is Lifetime.SEQUENCE
        )
        moved = 2.0 * elements * STATE_BYTES * sequences * (self.worker.draft_tokens + 1)
        return np.asarray(
            moved / (device.element_efficiency * device.memory_bandwidth), dtype=np.float64
        )


def _sample_points(largest: int, *, smallest: int = 1) -> IntArray:
    """Powers of two and their half-way points from `smallest` to `largest`, and `largest`."""
    points, power = {largest}, smallest
    while power < largest:
        points |= {power, min(power * 3 // 2, largest)}
        power *= 2
    return np.array(sorted(points), dtype=np.int64)


def _token_points(problem: ServingProblem, worker: Worker) -> IntArray:
    """Numbers of tokens that are priced: the captured sizes, and samples up to the most tokens.

    The most tokens are the budget or those of the most decoding requests.
    """
    engine = problem.engine
    max_tokens = max(
        worker.chunk or engine.token_budget,
        (worker.sequences or engine.max_sequences) * (worker.draft_tokens + 1),
    )
    captured = [size for size in engine.captured if size <= max_tokens]
    return np.array(sorted({*_sample_points(max_tokens).tolist(), *captured}), dtype=np.int64)
