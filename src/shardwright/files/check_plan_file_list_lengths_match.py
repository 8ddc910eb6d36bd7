"""Checks of a plan file's lists that must be as long as other lists.

A schema cannot express these conditions; each is checked once when a file is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import DataError
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, StoredSimulation
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.certificate_part_of_cluster_states import ScenariosPart
from shardwright.search.mixed_cluster_certificate import MixedPart


@dataclass(frozen=True, slots=True)
class ListLength:
    """Length of a list: its `found` items, and the `needed` number, one for each of `each`."""

    path: str
    found: int
    needed: int
    each: str


def require_lengths(saved: StoredSimulation, *, name: str, hint: str) -> None:
    """Raise DataError unless a stored plan's lists have needed lengths, and stages count from 0.

    Args:
        name, hint: of the file, for messages.

    Raises:
        DataError: a list has more or fewer items; or the stages are not numbered from 0.
    """
    for one in _list_lengths(saved):
        if one.found != one.needed:
            raise DataError(
                f"{name}: {one.path} has {one.found} items, not {one.needed}: one for each of"
                f" {one.each}",
                hint=hint,
            )
    ranks = [stage.rank for stage in saved.prediction.stages]
    if sorted(ranks) != list(range(len(ranks))):
        raise DataError(
            f"{name}: prediction: stages have the ranks {str(ranks)[:40]}, not each from 0 on once",
            hint=hint,
        )


def _list_lengths(saved: StoredSimulation) -> Iterator[ListLength]:
    """Yield each list that depends on others: path, its length, needed length, reason."""
    stages, classes, spending = saved.prediction.stages, saved.classes, saved.prediction.spending
    yield ListLength(
        "prediction.stages",
        min(len(stages), 1),
        1,
        "the pipeline's ranks or classes of devices, at least one",
    )
    if classes:
        yield ListLength("classes", len(classes), len(stages), "prediction.stages")
    if spending is not None:
        yield ListLength(
            "prediction.spending.working_devices",
            len(spending.working_devices),
            len(spending.paid_devices),
            "prediction.spending.paid_devices",
        )
    if isinstance(saved, StoredPlan) and saved.certificate.mixed is not None:
        yield from _pool_list_lengths(saved.certificate.mixed)
    if isinstance(saved, StoredPlan) and saved.certificate.scenarios is not None:
        yield from _scenario_list_lengths(saved.certificate.scenarios)


def _pool_list_lengths(part: MixedPart) -> Iterator[ListLength]:
    """Yield the lengths of lists with one item for each device pool."""
    pools, each, path = len(part.alone), "certificate.mixed.alone", "certificate.mixed"
    for i, closed in enumerate(part.closed):
        for j, dual in enumerate(closed.duals):
            yield ListLength(f"{path}.closed.{i}.duals.{j}.devices", len(dual.devices), pools, each)
    for i, cell in enumerate(part.valued.cells if part.valued is not None else ()):
        for j, shown in enumerate(cell.shown):
            for k, floor in enumerate(shown.floors):
                yield ListLength(
                    f"{path}.valued.cells.{i}.shown.{j}.floors.{k}.devices",
                    len(floor.devices),
                    pools,
                    each,
                )


def _scenario_list_lengths(part: ScenariosPart) -> Iterator[ListLength]:
    """Yield the lengths of lists with one item for each scenario."""
    for i, tried in enumerate(part.next_best):
        yield ListLength(
            f"certificate.scenarios.next_best.{i}.steps_s",
            len(tried.steps_s),
            len(part.outcomes),
            "certificate.scenarios.outcomes",
        )
