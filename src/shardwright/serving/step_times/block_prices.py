"""The step table of a worker: every block lowered once,
priced for all numbers of tokens at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.degree_columns import Rows
from shardwright.cost.inference.backend_names import expert_library, library_of
from shardwright.cost.inference.block_forward import PARTS, ForwardSeconds, forward_seconds, is_head
from shardwright.cost.inference.decode_attention import decode_columns
from shardwright.cost.inference.engine_collectives import engine_networks
from shardwright.cost.inference.gemm_formats import Products
from shardwright.cost.inference.prompt_attention import prompt_seconds
from shardwright.cost.kernels.machine_rates import Machine, machine_of
from shardwright.cost.kernels.state_space_scan import scan_seconds
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.serving_constants import ServingConstants
from shardwright.hardware.device import Accelerator
from shardwright.job.serving import NumberFormat
from shardwright.lazy_dataclass import dataclass
from shardwright.model.absorbed import latent_of
from shardwright.model.blocks.predictor import PREDICTORS
from shardwright.model.ir.block import TEXT, Block
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.living import Lifetime, lives_in
from shardwright.runtime.runtime import AttentionKernel, ElementKernels
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.workers import Worker
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
"""Units that multiply a format; devices have as many of them for 8-bit integers as for 8-bit
floats."""
STATE_BYTES: Final = 4
LONGEST: Final = 2**17


def step_table(problem: ServingProblem, worker: Worker) -> StepTable:
    """What an iteration of one rank of `worker` takes; see `StepTable` for how its columns are
    added up.

    The engine is that of `on_worker`.

    Stages are as long as their sum over their number: layers are cut evenly.
    """
    engine, model, constants = problem.engine, problem.model, problem.constants
    products = products_of(problem)
    machine, networks = products.machine, engine_networks(problem.cluster, engine)
    device = problem.cluster.node.accelerator.name
    of_prompts, of_answers = (
        constants.in_place(kernels, device) for kernels in ("prompts", "answers")
    )
    tokens = _token_points(problem, worker)
    sequences = _points(worker.sequences or engine.max_sequences)
    lengths = np.concatenate([[0], _points(LONGEST, least=64)])
    base, head = _Path.zeros(len(tokens)), _Path.zeros(len(sequences))
    start, slope, prompts = (
        np.zeros(len(sequences)),
        np.zeros(len(sequences)),
        np.zeros(len(lengths)),
    )
    windows: dict[int, FloatArray] = {}
    for block, count in counted_blocks(model, guesses=worker.guesses):
        at = sequences * (worker.guesses + 1) if is_head(block) else tokens
        found = forward_seconds(
            block,
            rows_of(worker, at),
            products=products,
            networks=networks,
            skew=problem.job.expert_skew,
            gap_s=constants.replayed_launch_s,
        )
        path = _path(found, block, problem)
        if is_head(block):
            head += path.times(count)
            continue
        base += path.times(count)
        core = _Core.of(block, problem, worker, machine)
        start += count * core.state(sequences)
        prompts += count * of_prompts * core.prompts(lengths)
        for window, (fixed, alone) in core.decoding(sequences).items():
            start += count * of_answers * fixed
            each = of_answers * alone
            if window:
                windows[window] = windows.get(window, np.zeros(len(sequences))) + count * each
            else:
                slope += count * each
    names = sorted(windows)
    # Between two iterations lies what one stage takes of the first, so the host's work hides behind
    # as much in each of them, or comes on top of it.
    turns = worker.pp if engine.asynchronous or engine.stages_wait else 1
    return StepTable(
        tokens=tokens,
        replayed=rising(base.replayed),
        launched=rising(np.maximum(base.launched, base.replayed)),
        replaying=rising(base.replaying),
        launching=rising(base.launching),
        captured=np.array(engine.captured, dtype=np.int64),
        piecewise=engine.piecewise,
        sequences=sequences,
        head=rising(head.replayed),
        decode_start=rising(start),
        decode_slope=slope,
        windows=np.array(names, dtype=np.int64),
        window_slope=np.array([windows[w] for w in names]).reshape(len(names), len(sequences)),
        prompt_tokens=lengths.astype(np.int64),
        prompt_seconds=rising(prompts),
        host_s=constants.host_iteration_s * turns,
        host_sequence_s=constants.host_sequence_s * turns,
        answer_s=0.0,
        asynchronous=engine.asynchronous,
        guesses=worker.guesses,
        stages=worker.pp,
        pads=engine.pads,
    )


def rising(values: FloatArray) -> FloatArray:
    """`values` without the falls that scattered measurements have: the middle of the highest value
    so far and the lowest that is to come.
    """
    return np.asarray(
        (np.maximum.accumulate(values) + np.minimum.accumulate(values[::-1])[::-1]) / 2
    )


def counted_blocks(model: Model, *, guesses: int) -> tuple[tuple[Block, int], ...]:
    """Blocks that text runs through in an iteration, with how often: those that predict further
    tokens once for each guess.
    """
    found: dict[int, int] = {}
    for run in model.runs:
        block = model.blocks[run.block]
        count = run.count if block.name not in PREDICTORS else guesses
        if block.sequence == TEXT and count:
            found[run.block] = found.get(run.block, 0) + count
    return tuple((model.blocks[number], count) for number, count in found.items())


def products_of(problem: ServingProblem) -> Products:
    """Rates of products in all formats of the job, on the cluster's device."""
    device, precision = problem.cluster.node.accelerator, problem.job.precision
    classes = (precision.attention, precision.mlp, precision.experts, precision.head)
    formats = {NumberFormat.BF16, *(one.activations for one in classes)}
    return Products(
        machine=_machine(device, NumberFormat.BF16),
        by_format={one: _machine(device, one) for one in sorted(formats)},
        precision=precision,
        library=library_of(problem.engine),
        expert_library=expert_library(problem.engine),
    )


def _machine(device: Accelerator, multiplied: NumberFormat) -> Machine:
    return machine_of(
        device,
        compute=MULTIPLIES_IN.get(multiplied, Dtype.BF16),
        attention=AttentionKernel.FLASH_3,
        elements=ElementKernels.FUSED,
    )


def rows_of(worker: Worker, tokens: IntArray) -> Rows:
    """A worker's stage as rows of degrees, tensor parallel ranks side by side; ``mbs`` = tokens of
    a rank.
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
    return Rows(
        columns={"mbs": tokens}
        | {name: np.full(len(tokens), value, dtype=np.int64) for name, value in fixed.items()}
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Path:
    """Seconds where captured graphs replay kernels, and where the host launches them one by one;
    and those of the host alone, of both.
    """

    replayed: FloatArray
    launched: FloatArray
    replaying: FloatArray
    launching: FloatArray

    @staticmethod
    def zeros(count: int) -> _Path:
        return _Path(
            **dict.fromkeys(("replayed", "launched", "replaying", "launching"), np.zeros(count))
        )

    def __add__(self, other: _Path) -> _Path:
        return _Path(
            replayed=self.replayed + other.replayed,
            launched=self.launched + other.launched,
            replaying=self.replaying + other.replaying,
            launching=self.launching + other.launching,
        )

    def times(self, count: int) -> _Path:
        return _Path(
            replayed=self.replayed * count,
            launched=self.launched * count,
            replaying=self.replaying * count,
            launching=self.launching * count,
        )


def _path(found: ForwardSeconds, block: Block, problem: ServingProblem) -> _Path:
    """A block takes no less than its host does: for each kernel where Python launches them; where
    an engine compiles what lies between two attention cores (it is what it captures in pieces) for
    each such piece and its kernels, but those of experts, which stay Python's; for each piece alone
    where captured pieces are replayed.
    """
    constants, engine = problem.constants, problem.engine
    total = in_place(found, constants, accelerator=problem.cluster.node.accelerator.name)
    pieces = (
        sum(o.kind is OperatorKind.ATTENTION or o.scan is not None for o in block.operators)
        * constants.host_piece_s
    )
    launches = found.kernels * constants.host_launch_s
    if engine.piecewise:
        compiled = found.compiled * constants.compiled_launch_s
        launches = pieces + compiled + found.opaque * constants.host_launch_s
    replays = np.full(len(total), 0.0 if engine.full_graphs else pieces)
    return _Path(
        replayed=np.maximum(total, replays),
        launched=np.maximum(total, launches),
        replaying=replays,
        launching=np.broadcast_to(launches, total.shape),
    )


def in_place(found: ForwardSeconds, constants: ServingConstants, *, accelerator: str) -> FloatArray:
    """(t,) seconds of a block's kernels in a running engine on a catalog's `accelerator`."""
    return np.asarray(
        np.array([constants.in_place(part, accelerator) for part in PARTS]) @ found.seconds,
        dtype=np.float64,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Core:
    """What of a block depends on contexts."""

    block: Block
    machine: Machine
    worker: Worker
    kv: NumberFormat
    library: str

    @staticmethod
    def of(block: Block, problem: ServingProblem, worker: Worker, machine: Machine) -> _Core:
        return _Core(
            block=block,
            machine=machine,
            worker=worker,
            kv=problem.job.precision.kv,
            library=library_of(problem.engine),
        )

    def _cores(self) -> list[Operator]:
        return [
            o for o in self.block.operators if o.attention is not None and not o.attention.cross
        ]

    def decoding(self, sequences: IntArray) -> dict[int, tuple[FloatArray, FloatArray]]:
        """(start, slope) of the cores by their window (0 = none): keys that a scorer chooses are as
        many as a window has.
        """
        latent = latent_of(self.block)
        found: dict[int, tuple[FloatArray, FloatArray]] = {}
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
                queries=self.worker.guesses + 1,
                library=self.library,
            )
            window = shape.window or shape.selected
            before = found.get(window, (np.zeros(len(sequences)), np.zeros(len(sequences))))
            found[window] = (before[0] + start, before[1] + slope)
        return found

    def prompts(self, lengths: IntArray) -> FloatArray:
        """(p,) seconds of cores and scans over whole prompts."""
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
                each = np.full(len(lengths), -(-operator.scan.heads // self.worker.tp))
                spent = scan_seconds(
                    self.machine,
                    operator.scan,
                    tokens=np.maximum(lengths, 1),
                    heads=each,
                    backward=False,
                )
                total += np.where(lengths > 0, spent - 4 * self.machine.accelerator.launch_s, 0.0)
        return total

    def state(self, sequences: IntArray) -> FloatArray:
        """(s,) seconds to read and write the states of so many sequences."""
        device = self.machine.accelerator
        elements = sum(
            one.elements(self.worker.tp)
            for one in lives_in(self.block)
            if one.lifetime is Lifetime.SEQUENCE
        )
        moved = 2.0 * elements * STATE_BYTES * sequences * (self.worker.guesses + 1)
        return np.asarray(
            moved / (device.element_efficiency * device.memory_bandwidth), dtype=np.float64
        )


def _points(most: int, *, least: int = 1) -> IntArray:
    """Powers of two and half-way points from `least` up to `most`, and `most`."""
    found, power = {most}, least
    while power < most:
        found |= {power, min(power * 3 // 2, most)}
        power *= 2
    return np.array(sorted(found), dtype=np.int64)


def _token_points(problem: ServingProblem, worker: Worker) -> IntArray:
    """Numbers of tokens that are priced: the captured sizes, and others up to the budget or the
    most that decode.
    """
    engine = problem.engine
    most = max(
        worker.chunk or engine.token_budget,
        (worker.sequences or engine.max_sequences) * (worker.guesses + 1),
    )
    captured = [size for size in engine.captured if size <= most]
    return np.array(sorted({*_points(most).tolist(), *captured}), dtype=np.int64)
