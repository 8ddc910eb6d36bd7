"""Protocol of a measured run, and kinds of cross-validation folds, for training and serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from shardwright.hardware.cluster import Cluster
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model

SHIPPED_FOLD: Final = "none"
"""Kind of fold that holds nothing out: rows are predicted with the shipped constants."""
Progress = Callable[[str, int, int], None]
"""Called with (phase, tasks done, tasks in all)."""


class MeasuredRun(Protocol):
    """A table row as a problem to predict, with its measured values."""

    @property
    def measurement(self) -> Any:
        """The row as published."""

    @property
    def model(self) -> Model:
        """Model of the run."""

    @property
    def cluster(self) -> Cluster:
        """Cluster of the run."""

    @property
    def ran(self) -> bool:
        """True if the run took place; False for a configuration that ran out of memory."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Settings that the row lacks and the conversion assumed, each with its source."""

    def measured(self, metric: Any, /) -> float | None:
        """Measured value of a metric; None where the row has none."""

    def predicted(self, prediction: Any, metric: Any, /) -> float | None:
        """Predicted value of a metric, comparable with the measured one; None = no such value."""

    def run_cells(self) -> Mapping[str, Any]:
        """Name -> value of the run's properties that remarks and limits may select by."""


RunT = TypeVar("RunT", bound=MeasuredRun)
ConstantsT = TypeVar("ConstantsT")
PredictionT = TypeVar("PredictionT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(Generic[RunT]):
    """A kind of cross-validation fold: rows of one key are predicted by constants fitted to others.

    Args:
        key: key of a run's fold.
        fitted_as: kind of fold whose constants are used; empty = its own.
        predicted_as: the run that is predicted in place of a run; None = the run itself.
    """

    name: str
    key: Callable[[RunT], str]
    fitted_as: str = ""
    predicted_as: Callable[[RunT], RunT] | None = None


def by_name(*folds: Fold[RunT]) -> dict[str, Fold[RunT]]:
    """Name -> kind of cross-validation fold."""
    return {fold.name: fold for fold in folds}


def has_routed_experts(model: Model) -> bool:
    """True if the model has a mixture-of-experts layer with a router."""
    return any(part.experts is not None for block in model.blocks for part in block.operators)
