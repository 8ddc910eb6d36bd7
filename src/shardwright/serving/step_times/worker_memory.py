"""Memory of a worker's devices: weights, activations of an iteration, and the KV cache."""

from __future__ import annotations

import numpy as np

from shardwright.cost.inference.block_forward_without_context_attention import forward_program
from shardwright.cost.inference.gemm_rates_and_number_formats import formats_of
from shardwright.errors import InfeasibleError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import PREDICTORS
from shardwright.model.decode_state import Lifetime, decode_states
from shardwright.model.ir.operator import OperatorClass, OperatorKind
from shardwright.program.block.local_token_and_tensor_sizes import per_token
from shardwright.program.block.symbolic_sizes import evaluate
from shardwright.runtime.serving_engines.serving_engine import ExpertExchange, MemoryRule
from shardwright.serving.deployments.scheduler_settings import running_at_once
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Worker
from shardwright.serving.step_times.build_step_table import STATE_BYTES, block_uses, worker_rows
from shardwright.units import GIB, format_bytes

CONTEXT_BYTES = 2 * GIB
"""Bytes of CUDA's context, NCCL's buffers, workspaces, and unused bytes of PyTorch's allocator.

Source: assumed; vLLM reports 0.6 to 1.5 GiB of memory outside PyTorch on one to eight H100 (docs,
"conserving memory"), and its workspace of FlashInfer's attention is 0.4 GiB more. Of 1, 1.5 and 2
GiB this value makes published runs wait for the cache where they were measured to (21 of 29, 20 of
28, 21 of 25 rows near its end), so it is one of the numbers that were fitted to runs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Bytes on the worker's fullest device, by use, and the size of its KV cache.

    Args:
        capacity: memory of the device.
        usable: memory that the engine may take.
        weights: weights.
        activations: activations of the largest iteration.
        others: memory outside the engine's tensors.
        cache: memory left for keys, values and states.
        token: bytes of a cached token of a rank.
        sequence: bytes of a sequence's states.
        blocks: blocks that fit, of `block_tokens` tokens each.
    """

    capacity: int
    usable: int
    weights: int
    activations: int
    others: int
    cache: int
    token: float
    sequence: int
    blocks: int
    block_tokens: int

    @property
    def tokens(self) -> int:
        """Number of tokens that fit in the cache of a rank."""
        return self.blocks * self.block_tokens


def worker_memory(problem: ServingProblem, worker: Worker) -> WorkerMemory:
    """Memory of a worker's fullest device by use, and KV blocks that fit; InfeasibleError if none.

        cache = capacity x fraction - weights - activations - others        MemoryRule.TOTAL
        cache = (capacity - others) x fraction - weights                    STATIC
        cache = (capacity - weights - activations - others) x fraction      FREE

    With STATIC the rest is left to activations and graphs. States of sequences are reserved for all
    sequences that may run at once. The engine is that of `problem_on_worker`.

    Raises:
        InfeasibleError: no memory is left for the cache, or one block does not fit.
    """
    engine, device = problem.engine, problem.cluster.node.accelerator
    weights, activations = weight_bytes(problem, worker), _activation_bytes(problem, worker)
    others = CONTEXT_BYTES
    taken = weights + activations + others
    if engine.memory_rule is MemoryRule.FREE:
        usable = int((device.memory_bytes - taken) * engine.memory_fraction) + taken
    elif engine.memory_rule is MemoryRule.STATIC:
        usable = int((device.memory_bytes - others) * engine.memory_fraction)
    else:
        usable = int(device.memory_bytes * engine.memory_fraction)
    fixed = weights if engine.memory_rule is MemoryRule.STATIC else taken
    token, sequence = cached_bytes(problem, worker)
    running = running_at_once(engine, worker)
    after_fixed = usable - fixed
    cache = after_fixed - sequence * running
    blocks = int(cache // (token * engine.block_tokens)) if token else running
    if after_fixed <= 0 or blocks < 1:
        need = fixed + sequence * running + int(token * engine.block_tokens)
        raise InfeasibleError(
            f"a device needs {format_bytes(need)} for weights, an iteration and one block of the"
            f" cache, and may take {format_bytes(usable)}: {format_bytes(need - usable)} too much",
            hint="a higher tp or ep, weights in fewer bits, or a higher memory fraction",
        )
    return WorkerMemory(
        capacity=device.memory_bytes,
        usable=usable,
        weights=weights,
        activations=activations,
        others=others,
        cache=max(cache, 0),
        token=token,
        sequence=sequence,
        blocks=blocks,
        block_tokens=engine.block_tokens,
    )


def require_cache_for(memory: WorkerMemory, *, longest: int) -> None:
    """Raise InfeasibleError unless the cache holds one request of `longest` tokens."""
    if memory.tokens < longest:
        missing = int((longest - memory.tokens) * memory.token)
        raise InfeasibleError(
            f"the cache holds {memory.tokens:,} tokens, and the longest request has {longest:,}:"
            f" {format_bytes(missing)} too little",
            hint=(
                "shorter requests, a higher tp, keys and values in fewer bits, or a higher memory"
                " fraction"
            ),
        )


def weight_bytes(problem: ServingProblem, worker: Worker) -> int:
    """Weight bytes on a device of a worker, all blocks / pp; each operator class in its format.

    Blocks are divided evenly over stages.
    """
    rows = worker_rows(worker, np.ones(1, dtype=np.int64))
    local = rows.degrees()
    total = 0.0
    for block, count in block_uses(problem.model, draft_tokens=worker.draft_tokens):
        if worker.draft_tokens and block.name in PREDICTORS:
            count = 1
        program = forward_program(block, routed=worker.dpa > 1)
        owner = {p.name: o for o in block.operators for p in o.parameters}
        for stored in program.stored:
            if stored.tied:
                continue
            operator = owner[stored.parameter]
            local_degrees = (
                {**local, "tp": local["etp"]}
                if operator.klass is OperatorClass.EXPERTS and worker.dpa == 1
                else local
            )
            elements = int(evaluate(stored.elements, local_degrees)[0])
            if operator.klass is OperatorClass.EXPERTS and worker.dpa == 1:
                elements = -(-elements // worker.ep)
            total += count * elements * formats_of(problem.job.precision, operator).weights.bytes
    return int(total / worker.pp)


def cached_bytes(problem: ServingProblem, worker: Worker) -> tuple[float, int]:
    """(bytes of a cached token, bytes of a sequence's states) on a device.

    Tokens beyond a window count as cached.
    """
    token, sequence = 0.0, 0
    for block, count in block_uses(problem.model, draft_tokens=min(worker.draft_tokens, 1)):
        for living in decode_states(block):
            elements = living.elements(worker.tp)
            if living.lifetime is Lifetime.TOKEN:
                token += count * elements * problem.job.precision.kv.bytes
            else:
                sequence += count * elements * STATE_BYTES
    return token / worker.pp, int(sequence / worker.pp)


def _activation_bytes(problem: ServingProblem, worker: Worker) -> int:
    """Bytes of activations on a device in the largest iteration: stream, and largest temporaries.

    The stream between blocks, and the largest of: the widest matrix products of a layer in 16 bits,
    the gathered tokens of experts, and the logits while a token of each request is sampled.
    """
    engine, model = problem.engine, problem.model
    tokens = worker.chunk or engine.token_budget
    local = worker_rows(worker, np.full(1, tokens, dtype=np.int64)).degrees()
    widest = 0
    for block, _ in block_uses(model, draft_tokens=worker.draft_tokens):
        program = forward_program(block, routed=worker.dpa > 1)
        written_bytes = [
            int(sum(int(evaluate(size, local)[0]) for size in w.written))
            for w in program.works
            if w.phase.value == "F" and w.written
        ]
        widest = max(widest, sum(sorted(written_bytes)[-2:]))
    logits = (worker.sequences or engine.max_sequences) * model.vocab * engine.logit_bytes
    return tokens * model.hidden * 2 * 2 + max(
        widest, logits, _gathered_bytes(problem, worker, tokens=tokens)
    )


def _gathered_bytes(problem: ServingProblem, worker: Worker, *, tokens: int) -> int:
    """Bytes of a rank's expert buffers for tokens gathered from all dp ranks; 0 if not gathered.

    The tokens, `tokens` of each rank, their sum, and rows for as many experts as a token chooses,
    on any rank:

        T (2 hidden x 2 + k (max(hidden, width) a + max(2 width, hidden) x 2)) of T tokens that
        choose k experts, with a bytes an activation

    Source: TensorRT-LLM, moe_kernels.cu (`getWorkspaceDeviceBufferSizes`: the inputs of both
    products share a buffer, and so do their outputs), from memory.
    """
    if worker.dpa == 1 or problem.engine.exchange is not ExpertExchange.GATHERED:
        return 0
    largest = 0
    for block, _ in block_uses(problem.model, draft_tokens=worker.draft_tokens):
        for operator in block.operators:
            if (
                operator.experts is None
                or operator.kind is not OperatorKind.GROUPED_LINEAR
                or operator.name.endswith("up")
            ):
                continue
            (width,), (hidden,) = (
                per_token(operator.reads, operator),
                per_token(operator.writes, operator),
            )
            element = problem.job.precision.experts.activations.bytes
            rows = operator.experts.topk * (
                max(hidden.size, width.size) * element + max(2 * width.size, hidden.size) * 2
            )
            largest = max(largest, int(tokens * worker.dpa * (2 * problem.model.hidden * 2 + rows)))
    return largest
