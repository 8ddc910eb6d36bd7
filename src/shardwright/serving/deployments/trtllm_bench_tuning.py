"""Token budget and batch size as TensorRT-LLM's benchmark tool (trtllm-bench) chooses them.

From memory and mean lengths.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Worker
from shardwright.units import GIB

MAX_REQUESTS: Final = 4096
MAX_TOKENS: Final = 32768
CACHE_SHARE: Final = 0.95
"""Share of the memory beside the weights for the cache, if the engine sets none."""
_BYTES: Final = {NumberFormat.FP8: 1.0, NumberFormat.NVFP4: 0.5}


def with_benchmark_sizes(problem: ServingProblem, worker: Worker) -> Engine:
    """The engine with trtllm-bench's `token_budget` and `max_sequences`, if it is so tuned.

    n = CACHE_SHARE x (memory of all devices - parameters x their bytes) / (bytes of a token's keys
    and values x mean prompt and answer) requests fill the cache, at most 4,096 for all stages. They
    are rounded up to steps of 32 below 256, of 128 below 1,024, else of 256, and are 64 at least:
    b. Tokens are n (1 + prompt / answer), at most 32,768, rounded up to steps of 256 below 4,096,
    of 512 below 8,192, else of 1,024, 2,048 at least, and prompt + b at least where prompts are not
    cut. Values that the user set stay.

    Llama 3.1 405B in NVFP4 on 4 B200, prompts of 128 and answers of 4,096: some 470 requests, so
    480 or 512 at once and 2,048 tokens.

    Source: TensorRT-LLM, tensorrt_llm/bench/build/tuning.py (`calc_engine_setting`,
    `finetune_setting`) and tensorrt_llm/bench/benchmark/utils/general.py (`get_settings`). Left
    out: its rule for models with states of sequences.
    """
    engine, lengths = problem.engine, problem.job.lengths
    if not engine.tuned_sizes or lengths is None:
        return engine
    inputs, outputs = lengths.inputs.mean, lengths.outputs.mean
    fit = (
        min(_requests_in_cache(problem, worker, tokens=inputs + outputs), MAX_REQUESTS) / worker.pp
    )
    batch = max(64, _rounded_up(fit, (256, 32), (1024, 128), largest_step=256))
    tokens = max(
        2048,
        _rounded_up(
            min(fit * (1 + inputs / outputs), MAX_TOKENS),
            (4096, 256),
            (8192, 512),
            largest_step=1024,
        ),
    )
    if not engine.chunked_prefill:
        tokens = max(tokens, lengths.inputs.high + batch)
    set_by_user = dict(engine.options)
    return replace(
        engine,
        token_budget=engine.token_budget if "token_budget" in set_by_user else tokens,
        max_sequences=engine.max_sequences if "sequences" in set_by_user else batch,
    )


def _requests_in_cache(problem: ServingProblem, worker: Worker, *, tokens: float) -> float:
    """Requests of `tokens` tokens that fill a worker's cache, by trtllm-bench's own formula."""
    model, precision = problem.model, problem.job.precision
    ranks = worker.tp * worker.dpa
    weights = {precision.experts.weights, precision.mlp.weights} & {*_BYTES}
    parameters = model.num_parameters * min(
        (_BYTES[number_format] for number_format in weights), default=2.0
    )
    memory = problem.cluster.node.accelerator.memory_bytes * ranks * worker.pp
    token_bytes = 0.0
    for run in model.runs:
        for operator in model.blocks[run.block].operators:
            shape = operator.attention
            if shape is not None and not shape.cross:
                token_bytes += (
                    run.count * max(ranks, shape.kv_heads) * (shape.head_dim + shape.value_dim)
                )
    token_bytes *= 1.0 if precision.kv is NumberFormat.FP8 else 2.0
    share = problem.engine.memory_fraction or CACHE_SHARE
    return share * max(memory - parameters, GIB) / (token_bytes * tokens)


def _rounded_up(number: float, *steps: tuple[int, int], largest_step: int) -> int:
    """Round up to a multiple of the step of the first (limit, step) with a limit above the number.

    Else to a multiple of `largest_step`.
    """
    step = next((step for limit, step in steps if number < limit), largest_step)
    return step * ceil(number / step)
