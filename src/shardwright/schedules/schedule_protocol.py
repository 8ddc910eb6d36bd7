"""The interface of a pipeline schedule, and the class that all schedules are built with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement

MAX_ACTIONS = 2**24
"""Most actions of a table: beyond that a wrong number is likelier than a pipeline."""


class Schedule(Protocol):
    """A pipeline schedule: the order of every rank's actions, as a function of its sizes.

    An order does not depend on the sizes of its chunks: uneven first or last stages change the cost
    of an action, which is the lowering's matter, never the table.
    """

    @property
    def name(self) -> str:
        """Name of the schedule in the registry."""
        ...

    @property
    def placement(self) -> ChunkPlacement:
        """Placement of the schedule's chunks on ranks: looped, wave, or two opposite lanes.

        It also gives the number of lanes.
        """
        ...

    @property
    def kinds(self) -> str:
        """Letters of the kinds of action in the schedule's tables: F, I, W, B."""
        ...

    def table(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> ActionTable:
        """Build the table of `num_microbatches` a lane; StrategyError if the sizes have no table.

        Args:
            num_ranks: pipeline devices.
            chunks_per_rank: chunks of each lane on each rank; `placement` maps chunks to ranks.
            num_microbatches: microbatches of one step in each lane.
            parameters: parameters of this schedule alone.

        Raises:
            StrategyError: the schedule does not exist for these numbers.
        """
        ...

    def peak_in_flight(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> IntArray | None:
        """(num_ranks,) peak chunks in flight on each rank, of all lanes; None without a formula.

        (chunk, microbatch, slice) triples in flight at a time; None where no formula is published.

        A triple is in flight once its forward is done and until its B or W is done.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one action table: ranks, chunks, microbatches and schedule parameters.

    Ranks p, chunks v of each lane on each rank, microbatches m of each lane.
    """

    schedule: str
    ranks: int
    chunks: int
    microbatches: int
    options: tuple[tuple[str, int], ...] = ()

    def option(self, name: str, default: int) -> int:
        """Value of the schedule's parameter `name` (such as "group"), or `default` if not given."""
        return dict(self.options).get(name, default)

    @property
    def rank(self) -> IntArray:
        """(p,) rank numbers 0 to p - 1."""
        return np.arange(self.ranks)

    def refuse(self, message: str, *, rule: str, hint: str = "") -> StrategyError:
        """Make a StrategyError, with rule ``order.<rule>``: no table exists for these sizes."""
        return StrategyError(f"{self.schedule} {message}", hint=hint, rule=f"order.{rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRule:
    """A pipeline schedule made of functions of its sizes (a `Schedule`).

    Args:
        name: registry name.
        placement: map of its chunks to ranks.
        kinds: kinds of action in its tables.
        make: builds the table.
        peak: activations in flight by rank; see `Schedule.peak_in_flight`.
        legal: raises StrategyError for sizes without a table.
        options: names of its parameters.
        chunks_per_rank: the only number of chunks a rank that the schedule allows; 0 for any.
    """

    name: str
    placement: ChunkPlacement
    kinds: str
    make: Callable[[Sizes], ActionTable]
    peak: Callable[[Sizes], IntArray | None]
    legal: Callable[[Sizes], None] = lambda sizes: None
    options: tuple[str, ...] = ()
    chunks_per_rank: int = 1

    def table(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> ActionTable:
        """Build the action table after the sizes are checked; see `Schedule.table`."""
        return self.make(self._sizes(num_ranks, chunks_per_rank, num_microbatches, parameters))

    def peak_in_flight(
        self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
    ) -> IntArray | None:
        """(num_ranks,) peak chunks in flight on each rank, of all lanes; None without a formula.

        See `Schedule.peak_in_flight`.
        """
        return self.peak(self._sizes(num_ranks, chunks_per_rank, num_microbatches, parameters))

    def _sizes(
        self,
        num_ranks: int,
        chunks_per_rank: int,
        num_microbatches: int,
        parameters: dict[str, int],
    ) -> Sizes:
        """Check the sizes and return them as one object; StrategyError where no table exists."""
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
            counts | {name: count for name, count in parameters.items() if name == "slices"}
        ).items():
            if count < 1:
                raise StrategyError(
                    f"{self.name} needs {name} of at least 1, not {count}", rule="order.count"
                )
            total *= count
        if total > MAX_ACTIONS:
            raise StrategyError(
                f"{self.name} would have {total} actions; the limit is {MAX_ACTIONS}",
                rule="order.count",
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
