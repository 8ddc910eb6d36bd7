"""Raw rows of serving kernels from aiconfigurator-core, and fits that all table families share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from kernel_tables import SOURCES, nearest_filled, read
from scipy.optimize import least_squares

from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.measured_serving_kernels import STEPS

Columns = dict[str, np.ndarray]
Arrays = dict[str, np.ndarray]
LIBRARIES = ("vllm", "sglang", "trtllm")
FOLDERS = {source.name: source.folder for source in SOURCES}
SEED = 7


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the page: a subject, and errors |predicted / measured - 1| of formula and table."""

    name: str
    what: str
    formula: np.ndarray
    table: np.ndarray

    def cells(self) -> list[str]:
        """Median and 90th percentile in percent, and the number of rows."""

        def text(errors: np.ndarray) -> str:
            return (
                f"{100 * np.median(errors):.1f} / {100 * np.quantile(errors, 0.9):.1f}"
                if len(errors)
                else "-"
            )

        return [self.name, self.what, text(self.formula), text(self.table), str(len(self.formula))]


def newest(folder: Path, file: str) -> Path | None:
    """The file of the newest version with at least a third of the rows of the largest file.

    Release candidates measured only some parts again.
    """
    counts = {
        path: pq.read_metadata(path).num_rows
        for path in folder.glob(f"*/{file}")
        if "dev" not in path.parent.name
    }
    full = [path for path, count in counts.items() if count * 3 >= max(counts.values())]
    return max(
        full,
        key=lambda path: tuple(int(n) for n in re.findall(r"\d+", path.parent.name)),
        default=None,
    )


def rows_of(
    raw: Path, device: str, family: str, library: str, file: str, **wanted: object
) -> Columns:
    """Rows of the newest version; empty without any."""
    path = newest(raw / FOLDERS[device] / family / library, file)
    return read(path, **wanted) if path is not None else {}


def some(rows: Columns, which: np.ndarray) -> Columns:
    """Rows that a mask chooses."""
    return {name: column[which] for name, column in rows.items()}


def steps_of(octaves: np.ndarray) -> np.ndarray:
    """As they are stored; a grid point without a measurement takes the nearest."""
    return np.clip(np.round(nearest_filled(octaves) * STEPS), -127, 127).astype(np.int8)


def fitted_form(
    device: Accelerator,
    *,
    peak: float,
    flops: np.ndarray,
    moved: np.ndarray,
    seconds: np.ndarray,
    exponent: float = 0.0,
) -> np.ndarray:
    """(launches, ec, em, q) of `FittedForm` by robust least squares on logarithms.

    Outliers are weighed down. q = `exponent` unless that is 0.
    """

    def predicted(p: np.ndarray) -> np.ndarray:
        q = exponent or 1.0 + np.exp(p[3])
        compute, memory = (
            flops / (np.exp(p[1]) * peak),
            moved / (np.exp(p[2]) * device.memory_bandwidth),
        )
        larger, smaller = np.maximum(compute, memory), np.minimum(compute, memory)
        return np.exp(p[0]) + larger * (1 + (smaller / larger) ** q) ** (1 / q)

    begin = [np.log(1e-5), np.log(0.5), np.log(0.75), 0.0][: 3 if exponent else 4]
    limits = (
        [np.log(1e-6), np.log(0.02), np.log(0.05), -2.0][: len(begin)],
        [np.log(3e-4), 0.0, 0.0, 1.5][: len(begin)],
    )
    p = least_squares(
        lambda p: np.log(predicted(p) / seconds), begin, bounds=limits, loss="soft_l1", f_scale=0.1
    ).x
    return np.array(
        [np.exp(p[0]) / device.launch_s, np.exp(p[1]), np.exp(p[2]), exponent or 1.0 + np.exp(p[3])]
    )


def joined(
    device: Accelerator, form: np.ndarray, *, peak: float, flops: np.ndarray, moved: np.ndarray
) -> np.ndarray:
    """Seconds by a fitted form."""
    compute, memory = flops / (form[1] * peak), moved / (form[2] * device.memory_bandwidth)
    larger, smaller = np.maximum(compute, memory), np.minimum(compute, memory)
    return form[0] * device.launch_s + larger * (1 + (smaller / larger) ** form[3]) ** (1 / form[3])


def hats(axis: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(rows, points) weights of linear interpolation along a rising axis, held at its ends."""
    low = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 2)
    share = np.clip((values - axis[low]) / (axis[low + 1] - axis[low]), 0.0, 1.0)
    result = np.zeros((len(values), len(axis)))
    result[np.arange(len(values)), low] = 1 - share
    result[np.arange(len(values)), low + 1] += share
    return result


def smooth_grid(
    axes: tuple[np.ndarray, ...],
    places: tuple[np.ndarray, ...],
    values: np.ndarray,
    *,
    stiffness: float = 0.5,
) -> np.ndarray:
    """The grid whose interpolation is nearest to `values`, smooth where nothing is measured.

    Outliers are weighed down.
    """
    weights = hats(axes[0], places[0])
    for axis, place in zip(axes[1:], places[1:], strict=True):
        weights = (weights[:, :, None] * hats(axis, place)[:, None, :]).reshape(len(values), -1)
    shape = tuple(len(axis) for axis in axes)
    count = int(np.prod(shape))
    number = np.arange(count).reshape(shape)
    rough = np.zeros((count, count))
    for way in range(len(shape)):
        first, second = (
            np.take(number, np.arange(a, shape[way] - 1 + a), axis=way).ravel() for a in (0, 1)
        )
        for one, other in ((first, first), (second, second)):
            np.add.at(rough, (one, other), stiffness)
        for one, other in ((first, second), (second, first)):
            np.add.at(rough, (one, other), -stiffness)
    trust = np.ones(len(values))
    grid = np.zeros(count)
    for _ in range(3):
        weighed = weights * trust[:, None]
        grid = np.linalg.solve(
            weighed.T @ weights + rough + 1e-6 * np.eye(count), weighed.T @ values
        )
        trust = 1 / np.maximum(np.abs(weights @ grid - values) / 0.15, 1.0)
    return grid.reshape(shape)


def packed(
    kind: str,
    tables: dict[str, np.ndarray],
    axes: dict[str, tuple[int, ...]],
    **further: np.ndarray,
) -> Arrays:
    """Tables of one kind as they are stored: names, axis points, and steps one after the other."""
    names = np.frombuffer("\n".join(tables).encode(), dtype=np.uint8)
    points = {axis: np.array(values, np.float32) for axis, values in axes.items()}
    fields = {"names": names, "steps": np.stack(list(tables.values())), **points, **further}
    return {f"{kind}|{field}": array for field, array in fields.items()}
