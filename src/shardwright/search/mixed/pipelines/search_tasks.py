"""What tasks of a mixed search read, and the engine that works them out:
see docs/decisions/0016.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.engine.protocol import Ask, Engine
from shardwright.search.mixed.pipelines.priced_pipelines import Market
from shardwright.search.mixed.stages.frame_terms import Ground

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stock:
    """What all tasks of a mixed search read; a task names its market by its place."""

    problem: Problem
    markets: tuple[Market, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """Markets on an engine. One object for all of a search, so that workers that have its markets
    stay.
    """

    engine: Engine
    stock: Stock

    @staticmethod
    def of(engine: Engine, problem: Problem, markets: Sequence[Market]) -> Bench:
        """Some markets of a problem on an engine."""
        return Bench(engine=engine, stock=Stock(problem=problem, markets=tuple(markets)))

    def place(self, market: Market) -> int:
        """Where a market stands among all."""
        return next(place for place, one in enumerate(self.stock.markets) if one is market)

    def place_of(self, ground: Ground) -> int:
        """Where the first market on a ground stands among all."""
        return next(place for place, one in enumerate(self.stock.markets) if one.ground is ground)

    def flow(
        self, function: Callable[[Stock, Task], Result], ask: Ask[Task], *, size: int, more: int = 0
    ) -> Iterator[Result]:
        """``function(stock, task)`` of one task after another; as `Engine.flow`."""
        return self.engine.flow(function, ask, shared=self.stock, size=size, more=more)

    def map(
        self, function: Callable[[Stock, Task], Result], tasks: Sequence[Task], *, more: int = 0
    ) -> list[Result]:
        """``function(stock, task)`` of every task, in their order; as `Engine.map`."""
        return self.engine.map(function, tasks, shared=self.stock, more=more)
