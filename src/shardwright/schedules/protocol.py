"""The protocol that every pipeline schedule follows."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardwright.schedules.table import ActionTable

Int64 = npt.NDArray[np.int64]


class Schedule(Protocol):
    """A rule that orders the actions of a pipeline.

    An order does not depend on the sizes of its chunks: uneven first or last stages change what an action costs, which is the
    lowering's matter, never the table.
    """

    @property
    def name(self) -> str:
        """Registry name."""
        ...

    def table(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> ActionTable:
        """Every rank's actions in order.

        Args:
            num_ranks: pipeline devices. chunks_per_rank: chunks on each; chunk c runs on rank c % num_ranks.
            num_microbatches: of one step. parameters: the schedule's own.

        Raises:
            StrategyError: the schedule does not exist for these numbers.
        """
        ...

    def peak_in_flight(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> Int64 | None:
        """Most (chunk, microbatch) pairs whose forward is done and whose backward is not, by rank; None where no form is known."""
        ...
