"""Settings of a serving engine on the devices of a worker.

Defaults that follow from devices, degrees and model, and options of the deployment.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.hardware.catalog.compute_capability_by_gpu import generation_of
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.absorbed_latent_attention_sizes import latent_of
from shardwright.runtime.serving_engines.engine_defaults_on_device import (
    EngineSite,
    engine_on_device,
)
from shardwright.runtime.serving_engines.engine_options import engine_with_options
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.trtllm_bench_tuning import with_benchmark_sizes
from shardwright.serving.deployments.worker_pools import Worker


def problem_on_worker(problem: ServingProblem, worker: Worker) -> ServingProblem:
    """The serving problem with the worker's options, then the defaults for it, set in its engine.

    First the worker's options, then the engine's defaults for its devices, degrees and model. Keys
    and values are in the format of the engine's option, where the job leaves them in 16 bits.

    Raises:
        RuntimeModelError: the engine has no such option.
    """
    device, precision = problem.cluster.node.accelerator, problem.job.precision
    weights = {precision.experts.weights, precision.mlp.weights} - {NumberFormat.BF16}
    site = EngineSite(
        memory_bytes=device.memory_bytes,
        generation=generation_of(device),
        tp=worker.tp,
        pp=worker.pp,
        dpa=worker.dpa,
        draft_tokens=worker.draft_tokens,
        latent=any(latent_of(block) is not None for block in problem.model.blocks),
        architecture=problem.model.architecture,
        weights=min(weights, default=NumberFormat.BF16).value,
    )
    configured_engine = engine_with_options(problem.engine, worker.options)
    if precision.kv is NumberFormat.BF16 and configured_engine.kv_format in {
        number_format.value for number_format in NumberFormat
    }:
        precision = replace(precision, kv=NumberFormat(configured_engine.kv_format))
    job = replace(problem.job, precision=precision)
    engine = engine_on_device(
        with_benchmark_sizes(replace(problem, engine=configured_engine, job=job), worker), site
    )
    engine = replace(
        engine,
        token_budget=worker.chunk or engine.token_budget,
        max_sequences=worker.sequences or engine.max_sequences,
    )
    return replace(problem, engine=engine, job=job)
