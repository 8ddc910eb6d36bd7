"""Workers of a deployment: how each is cut over devices, and what its engine is told."""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options


class Role(StrEnum):
    """What a worker does: whole requests, or their prompts or answers alone."""

    AGGREGATED = "agg"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One replica of the model on tp x dpa x cp x pp devices.

    Args:
        tp: tensor parallel degree of attention (and of dense layers).
        dpa: ranks that each have attention, and a cache, for requests of their own; they run in
            lockstep.
        ep: experts are spread over as many of a stage's tp x dpa x cp devices; etp, each expert's
            own tensor parallel degree, is what is left of them.
        pp: stages.
        cp: devices that share the positions of a prompt.
        sequences, chunk: most requests of a rank, and most tokens of an iteration; 0 = the engine's
            own.
        options: of the engine.
        guesses: tokens guessed ahead in each iteration (mtp).
    """

    tp: int = 1
    dpa: int = 1
    ep: int = 1
    pp: int = 1
    cp: int = 1
    sequences: int = 0
    chunk: int = 0
    guesses: int = 0
    options: Options = ()

    @property
    def stage_devices(self) -> int:
        """Devices of a stage."""
        return self.tp * self.dpa * self.cp

    @property
    def devices(self) -> int:
        """Of the worker."""
        return self.stage_devices * self.pp

    @property
    def etp(self) -> int:
        """Tensor parallel degree of an expert."""
        return self.stage_devices // self.ep


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`count` equal workers of one role."""

    role: Role
    count: int
    worker: Worker

    @property
    def devices(self) -> int:
        """Of all its workers."""
        return self.count * self.worker.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Pools of workers: one of aggregated ones, or one that prefills and one that decodes.

    Its text is ``agg 4x(tp2 seqs256 chunk8192)`` or ``prefill 3x(tp4) decode 2x(dpa8 ep8 seqs64
    mtp3)``.
    """

    pools: tuple[Pool, ...]

    @property
    def devices(self) -> int:
        """Of all its workers."""
        return sum(pool.devices for pool in self.pools)
