"""Result of a serving proof: its log, and the difference of its logits from the unsplit model's.

Readable without PyTorch.
"""

from __future__ import annotations

from shardwright.execute.proof.proof_result import TOLERANCE
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model

Log = tuple[tuple[int, int, int], ...]
"""(turn, request, tokens) of every part that ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProof:
    """Result of serving a tiny model on virtual devices, compared with its simulation.

    Args:
        model: the small model.
        devices: number of virtual devices.
        tokens: prompt and answer of each request; empty where the request was refused.
        log: the parts that ran.
        simulated: the parts that ran in a simulation under the same policy and arrivals.
        preempted: number of times that a request lost its cache.
        computed: number of computed positions, with repetitions.
        difference: the largest difference of any logit from the unsplit model's.
    """

    model: Model
    devices: int
    tokens: tuple[tuple[int, ...], ...]
    log: Log
    simulated: Log
    preempted: int
    computed: int
    difference: float

    @property
    def equal(self) -> bool:
        """True if the logits equal the unsplit model's within rounding and both logs are equal."""
        return self.difference <= TOLERANCE and self.log == self.simulated
