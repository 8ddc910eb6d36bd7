"""What every pipeline schedule offers, and the one class that they are all made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.lazy_dataclass import dataclass
from shardwright.schedules.placement import Placement
from shardwright.schedules.table import ActionTable

LIMIT = 2**24
"""Most actions of a table: beyond that a wrong number is likelier than a pipeline."""


class Schedule(Protocol):
    """A rule that orders the actions of a pipeline.

    An order does not depend on the sizes of its chunks: uneven first or last stages change what an
    action costs, which is the lowering's matter, never the table.
    """

    @property
    def name(self) -> str:
        """Registry name."""
        ...

    @property
    def placement(self) -> Placement:
        """Which rank runs which chunk, and how many lanes there are."""
        ...

    @property
    def kinds(self) -> str:
        """Kinds of action that its tables hold, in PyTorch's letters."""
        ...

    def table(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> ActionTable:
        """Every rank's actions in order.

        Args:
            num_ranks: pipeline devices.
            chunks_per_rank: chunks of each lane on each rank; `placement` says which.
            num_microbatches: of one step and of each lane.
            parameters: the schedule's own.

        Raises:
            StrategyError: the schedule does not exist for these numbers.
        """
        ...

    def peak_in_flight(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> IntArray | None:
        """Most (chunk, microbatch, slice) triples whose forward is done and whose B or W is not, by
        rank; None where no form is known.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers of one table: ranks p, chunks v of each lane on each rank, microbatches m of each
    lane, and the schedule's own.
    """

    schedule: str
    ranks: int
    chunks: int
    microbatches: int
    options: tuple[tuple[str, int], ...] = ()

    def option(self, name: str, default: int) -> int:
        """The parameter called `name`, or its default."""
        return dict(self.options).get(name, default)

    @property
    def rank(self) -> IntArray:
        """(p,) numbers of the ranks."""
        return np.arange(self.ranks)

    def refuse(self, message: str, *, rule: str, hint: str = "") -> StrategyError:
        """The error that says why this schedule has no table of these sizes."""
        return StrategyError(f"{self.schedule} {message}", hint=hint, rule=f"order.{rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A schedule made of functions of its sizes.

    Args:
        name: registry name.
        placement: of its chunks.
        kinds: that its tables hold.
        make: the table.
        peak: see `Schedule.peak_in_flight`.
        legal: raises StrategyError for sizes it has no table for.
        options: names of its parameters.
        chunks_per_rank: the only number of chunks a rank that it knows; 0 for any.
    """

    name: str
    placement: Placement
    kinds: str
    make: Callable[[Sizes], ActionTable]
    peak: Callable[[Sizes], IntArray | None]
    legal: Callable[[Sizes], None] = lambda sizes: None
    options: tuple[str, ...] = ()
    chunks_per_rank: int = 1

    def table(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> ActionTable:
        """Every rank's actions in order; see `Schedule.table`."""
        return self.make(self._sizes(num_ranks, chunks_per_rank, num_microbatches, parameters))

    def peak_in_flight(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> IntArray | None:
        """Most chunks in flight by rank; see `Schedule.peak_in_flight`."""
        return self.peak(self._sizes(num_ranks, chunks_per_rank, num_microbatches, parameters))

    def _sizes(
        self,
        num_ranks: int,
        chunks_per_rank: int,
        num_microbatches: int,
        parameters: dict[str, int],
    ) -> Sizes:
        """The sizes, found legal."""
        unknown = sorted(set(parameters) - set(self.options))
        if unknown:
            raise StrategyError(
                f"{self.name} has no parameter {', '.join(unknown)}", rule="order.parameter"
            )
        counts = {
            "num_ranks": num_ranks,
            "chunks_per_rank": chunks_per_rank,
            "num_microbatches": num_microbatches,
        }
        total = (len(self.kinds) if "B" not in self.kinds else 2) * self.placement.lanes
        for name, count in (
            counts | {name: value for name, value in parameters.items() if name == "slices"}
        ).items():
            if count < 1:
                raise StrategyError(
                    f"{self.name} needs {name} of at least 1, not {count}", rule="order.count"
                )
            total *= count
        if total > LIMIT:
            raise StrategyError(
                f"{self.name} would have {total} actions; the limit is {LIMIT}", rule="order.count"
            )
        if self.chunks_per_rank and chunks_per_rank != self.chunks_per_rank:
            noun = "one chunk" if self.chunks_per_rank == 1 else f"{self.chunks_per_rank} chunks"
            raise StrategyError(
                f"{self.name} runs {noun} on each rank, not {chunks_per_rank}",
                hint="use interleaved-1f1b for several chunks a rank"
                if self.chunks_per_rank == 1
                else "",
                rule="order.chunks",
            )
        sizes = Sizes(
            schedule=self.name,
            ranks=num_ranks,
            chunks=chunks_per_rank,
            microbatches=num_microbatches,
            options=tuple(sorted(parameters.items())),
        )
        self.legal(sizes)
        return sizes
