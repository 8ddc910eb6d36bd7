"""An engine on the devices of a worker: every number that it sets by itself, and what the
deployment tells it.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.hardware.catalog.generation import generation_of
from shardwright.job.serving import NumberFormat
from shardwright.model.absorbed import latent_of
from shardwright.runtime.engines.devices import Site, on_device
from shardwright.runtime.engines.options import with_options
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.tensorrt_tuning import tuned
from shardwright.serving.deployments.workers import Worker


def on_worker(problem: ServingProblem, worker: Worker) -> ServingProblem:
    """The problem with its engine as it runs on `worker`: the worker's own options, then what
    follows from devices, degrees and model.

    Keys and values are in the format that the engine's option says, where the job leaves them in 16
    bits.

    Raises:
        RuntimeModelError: the engine has no such option.
    """
    device, precision = problem.cluster.node.accelerator, problem.job.precision
    weights = {precision.experts.weights, precision.mlp.weights} - {NumberFormat.BF16}
    site = Site(
        memory_bytes=device.memory_bytes,
        generation=generation_of(device),
        tp=worker.tp,
        pp=worker.pp,
        dpa=worker.dpa,
        guesses=worker.guesses,
        latent=any(latent_of(block) is not None for block in problem.model.blocks),
        architecture=problem.model.architecture,
        weights=min(weights, default=NumberFormat.BF16).value,
    )
    told = with_options(problem.engine, worker.options)
    if precision.kv is NumberFormat.BF16 and told.kv_format in {one.value for one in NumberFormat}:
        precision = replace(precision, kv=NumberFormat(told.kv_format))
    job = replace(problem.job, precision=precision)
    engine = on_device(tuned(replace(problem, engine=told, job=job), worker), site)
    engine = replace(
        engine,
        token_budget=worker.chunk or engine.token_budget,
        max_sequences=worker.sequences or engine.max_sequences,
    )
    return replace(problem, engine=engine, job=job)
