"""The deployment of a table row: equal workers from parallel degrees, or two pools."""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import StrategyError
from shardwright.serving.deployments.deployment_notation import parse_deployment
from shardwright.serving.deployments.worker_pools import Deployment, Worker, WorkerPool, WorkerRole
from shardwright.validation.serving.serving_table_columns import ServingMeasurement

PRODUCT: Final = "product of tp and ep"
INCONSISTENT: Final = "inconsistent"
_POOL: Final = re.compile(r"([0-9]{1,5})x\(tp([0-9]{1,5})(?:ep([0-9]{1,5}))?(dp)?\)")


def row_deployment(row: ServingMeasurement, *, draft_tokens: int = 0) -> Deployment:
    """Deployment of a row: by its cell `deployment`, else `workers`, else its parallel degrees.

    Args:
        draft_tokens: draft tokens of workers that decode.

    Raises:
        StrategyError: degrees are missing, contradict one another, or do not fit the number of
        devices.
    """
    if row.deployment:
        deployment = parse_deployment(row.deployment)
    elif row.workers:
        deployment = _parse_pools(row.workers, draft_tokens=draft_tokens)
    else:
        deployment = _equal_workers(row, draft_tokens=draft_tokens)
    for pool in deployment.pools:
        worker = pool.worker
        if worker.stage_devices % worker.ep:
            raise StrategyError(f"ep {worker.ep} does not divide {worker.stage_devices} devices")
    if (
        row.gpu_count
        and row.degrees != PRODUCT
        and row.workers
        and deployment.devices != row.gpu_count
    ):
        raise StrategyError(f"{row.workers} are {deployment.devices} devices, not {row.gpu_count}")
    return deployment


def _parse_pools(words: str, *, draft_tokens: int) -> Deployment:
    """Parse prefill and decode pools ``1x(tp4ep4dp)+5x(tp8ep8)``; tp: a worker's devices, dp: dpa.

    With ``dp`` attention is data parallel over the tp devices.
    """
    parts = [_POOL.fullmatch(part.strip()) for part in words.split("+")]
    if len(parts) != 2 or None in parts:
        raise StrategyError(f"workers {words[:60]!r} are not of the form 1x(tp4ep4dp)+5x(tp8ep8)")
    pools = []
    for role, part in zip((WorkerRole.PREFILL, WorkerRole.DECODE), parts, strict=True):
        assert part is not None
        count, devices, ep = int(part[1]), int(part[2]), int(part[3] or 1)
        data_parallel = bool(part[4])
        if not count or not devices or not ep:
            raise StrategyError(f"workers {words[:60]!r}: a count or degree of 0")
        worker = Worker(
            tp=1 if data_parallel else devices,
            dpa=devices if data_parallel else 1,
            ep=ep,
            draft_tokens=draft_tokens if role is WorkerRole.DECODE else 0,
        )
        pools.append(WorkerPool(role=role, count=count, worker=worker))
    return Deployment(pools=tuple(pools))


def _equal_workers(row: ServingMeasurement, *, draft_tokens: int) -> Deployment:
    """Equal workers of degrees tp, dpa, ep, pp: `replicas`, or as many as fill the devices."""
    tp, dpa, ep, pp = row.tp, row.dpa or 1, row.ep or 1, row.pp or 1
    if not tp:
        raise StrategyError("tp is not said, nor workers with their numbers")
    count = row.gpu_count
    if row.degrees == PRODUCT:
        if tp % ep:
            raise StrategyError(f"tp {tp} is no multiple of ep {ep}, and is said to be a product")
        tp, count = tp // ep, None
    worker = Worker(tp=tp, dpa=dpa, ep=ep, pp=pp, draft_tokens=draft_tokens)
    replicas = row.replicas or (count or worker.devices) // worker.devices
    if replicas * worker.devices != (count or replicas * worker.devices):
        raise StrategyError(f"{replicas} x (tp {tp} x dpa {dpa} x pp {pp}) is not {count} devices")
    return Deployment(
        pools=(WorkerPool(role=WorkerRole.AGGREGATED, count=replicas, worker=worker),)
    )
