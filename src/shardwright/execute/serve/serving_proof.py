"""Results of a tiny server, and the distance of its logits from the unsplit model's; read without
PyTorch.
"""

from __future__ import annotations

from shardwright.execute.proof.proof_result import TOLERANCE
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model

Log = tuple[tuple[int, int, int], ...]
"""(turn, request, tokens) of every part that ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProof:
    """A run of the tiny server.

    Args:
        model: the small one.
        devices: virtual ones.
        tokens: of each request, prompt and answer; empty where it was refused.
        log: what ran.
        simulated: the same of a simulation under the same policy and arrivals.
        preempted: times that a request lost its cache.
        computed: positions, each as often as it was computed.
        difference: the largest of any logit from the unsplit model's.
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
        """Logits are the unsplit model's, but for the order of sums, and the log is the
        simulator's.
        """
        return self.difference <= TOLERANCE and self.log == self.simulated
