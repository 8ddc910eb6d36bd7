"""Workers of a deployment: parallelism degrees, and limits set for their engine."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options


class WorkerRole(StrEnum):
    """Role of a worker: whole requests, prompts alone (prefill) or answers alone (decode)."""

    AGGREGATED = "agg"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One replica of the model on tp x dpa x cp x pp devices.

    Args:
        tp: tensor parallel degree of attention (and of dense layers).
        dpa: data parallel degree of attention: ranks that each have attention, and a cache, for
            requests of their own; they run in lockstep.
        ep: expert parallel degree over a stage's tp x dpa x cp devices; etp, an expert's tensor
            parallel degree, is the number of those devices over ep.
        pp: pipeline stages.
        cp: devices that share the positions of a prompt.
        sequences, chunk: most requests of a rank, and most tokens of an iteration; 0 = the engine's
            default.
        options: options of the engine.
        draft_tokens: draft tokens of each iteration (mtp).
    """

    tp: int = 1
    dpa: int = 1
    ep: int = 1
    pp: int = 1
    cp: int = 1
    sequences: int = 0
    chunk: int = 0
    draft_tokens: int = 0
    options: Options = ()

    @property
    def stage_devices(self) -> int:
        """Number of devices of a pipeline stage: tp x dpa x cp."""
        return self.tp * self.dpa * self.cp

    @property
    def devices(self) -> int:
        """Number of devices of the worker."""
        return self.stage_devices * self.pp

    @property
    def etp(self) -> int:
        """Tensor parallel degree of an expert: a stage's devices / ep."""
        return self.stage_devices // self.ep


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """A number of equal workers with one role."""

    role: WorkerRole
    count: int
    worker: Worker

    @property
    def devices(self) -> int:
        """Number of devices of all the pool's workers."""
        return self.count * self.worker.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Pools of workers: one of aggregated workers, or a prefill pool and a decode pool.

    Its text is ``agg 4x(tp2 seqs256 chunk8192)`` or ``prefill 3x(tp4) decode 2x(dpa8 ep8 seqs64
    mtp3)``.
    """

    pools: tuple[WorkerPool, ...]

    @property
    def devices(self) -> int:
        """Number of devices of all pools."""
        return sum(pool.devices for pool in self.pools)
