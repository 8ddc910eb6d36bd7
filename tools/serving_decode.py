"""Tables of decode attention and absorbed latent attention.

A table has a line over the context length for each (sequences, key heads, rows).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from kernel_tables import nearest_filled
from scipy.optimize import nnls
from serving_rows import LIBRARIES, Arrays, Columns, Line, packed, rows_of, some, steps_of

from shardwright.cost.inference.decode_attention import decode_columns
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.measured_serving_kernels import STEPS, octave_grid
from shardwright.hardware.catalog.serving_kernel_constants_where_unmeasured import (
    DECODE_BANDWIDTH,
    DECODE_LAUNCHES,
    DECODE_TILE,
)
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.absorbed_latent_attention_sizes import LatentSizes
from shardwright.model.ir.operator import AttentionShape

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEY_HEADS = (1, 2, 4, 8)
ROWS = (1, 2, 4, 8, 16)
LATENT_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
DIMS = (64, 128, 256)
CACHES = (("bfloat16", NumberFormat.BF16, 16), ("fp8", NumberFormat.FP8, 8))
LATENT = (512, 64)
ROW_AXIS = 2
SLOWEST = 1.6
"""Octaves of a latent's slope over reading at peak beyond which the library has no kernel for that
cache: flash-3 with 8 bits, 5 times."""
FASTEST = 0.97
"""Least ratio of a slope over reading at peak: B200's memory is at 8 TB/s, its catalog's at 7.7."""
SHORTEST = 64
LONGEST = 65536
L2_MIB = {"a100-sxm-80gb": 40, "h100-sxm": 50, "h200-sxm": 50, "l40s": 96, "rtx-pro-6000": 128}
BLACKWELL_L2_MIB = 126
"""Caches of the devices, from their white papers (from memory)."""


def line_of(
    context: np.ndarray, seconds: np.ndarray, *, start: float, slope: float
) -> tuple[float, float]:
    """(start, slope) with the least squares of relative errors, each at least as large as given."""
    columns = np.stack([np.ones_like(context), context], axis=1) / seconds[:, None]
    found, _ = nnls(columns, 1.0 - columns @ np.array([start, slope]))
    return float(found[0]) + start, float(found[1]) + slope


def from_memory(name: str, rows: Columns, *, elements: int, width: float) -> np.ndarray:
    """(rows,) True where the keys come from memory, not from the cache.

    An engine reads all other layers' keys and weights between two uses of one layer's keys, so its
    keys come from memory.

    A row repeats one kernel on the same keys. Where they fit the device's cache (up to half as much
    again) reading them costs next to nothing, which says nothing of an engine; where they are an
    eighth of it or less, reading is not what takes the time.
    """
    cache = L2_MIB.get(name, BLACKWELL_L2_MIB) * 2.0**20
    read = rows["batch_size"] * rows["key_heads"] * elements * width * rows["context"]
    return (read <= cache / 8) | (read >= 1.5 * cache)


def as_from_memory(rows: Columns, *, fair: np.ndarray, read: float) -> np.ndarray:
    """Seconds of a cell's rows with keys from memory.

    Rows with cached keys take at least the fastest row's time plus reading their keys as fast as
    kernels do.
    """
    least = rows["seconds"].min() + read * rows["context"] / DECODE_BANDWIDTH
    return np.where(fair, rows["seconds"], np.maximum(rows["seconds"], least))


def table_of(
    device: Accelerator,
    rows: Columns,
    fair: np.ndarray,
    *,
    elements: int,
    width: float,
    key_heads: tuple[int, ...],
    heads: tuple[int, ...],
) -> np.ndarray:
    """(2, sequences, key heads, rows) start and slope of each cell, non-decreasing along each axis.

    Starts are relative to a launch, slopes to reading at peak bandwidth.

    Cells are fitted from the smallest on, each no lower than those before it: at many sequences the
    bytes hide the start.
    """
    start, slope = (np.full((len(SEQUENCES), len(key_heads), len(heads)), np.nan) for _ in range(2))
    for at in np.ndindex(*start.shape):
        b, g, r = SEQUENCES[at[0]], key_heads[at[1]], heads[at[2]]
        here = (rows["batch_size"] == b) & (rows["key_heads"] == g) & (rows["num_heads"] == g * r)
        if here.sum() < 3:
            continue
        read = b * g * elements * width / device.memory_bandwidth
        cell, known = some(rows, here), fair[here]
        seconds = as_from_memory(cell, fair=known, read=read)
        # Few sequences never leave the cache: without its rows nothing would say what long contexts
        # take.
        kept = (
            known
            if known.sum() >= 3 and cell["context"][known].max() >= LONGEST / 4
            else np.ones(len(known), dtype=bool)
        )
        least = [_before(table, at) for table in (start, slope)]
        start[at], slope[at] = line_of(
            cell["context"][kept],
            seconds[kept],
            start=least[0],
            slope=max(least[1], FASTEST * read),
        )
    if np.isnan(start).all():
        return np.zeros(0)
    spread = [np.log2(axis) for axis in (SEQUENCES, key_heads, heads)]
    powers = spread[0][:, None, None] + spread[1][None, :, None] + 0.0 * spread[2][None, None, :]
    read = elements * width / device.memory_bandwidth * np.exp2(powers)
    # What was not measured (more keys than the device holds) takes the nearest ratio over the
    # formula, not the nearest seconds.
    usual = DECODE_LAUNCHES * device.launch_s + DECODE_TILE * read
    starts = rising(
        nearest_filled(np.log2(np.maximum(start, 1e-7) / usual)) + np.log2(usual / device.launch_s)
    )
    slopes = rising(nearest_filled(np.log2(slope / read)) + powers) - powers
    return np.stack([steps_of(starts), steps_of(slopes)])


def _before(table: np.ndarray, at: tuple[int, ...]) -> float:
    """Median of the cells that are one step smaller along some axis; 0 if there are none.

    The median, because one cell may be an accident of tuning.

    One query head for each key head may run another kernel than several do (TensorRT-LLM's on
    Hopper takes twice as long): not compared.
    """
    smaller = [way for way in range(3) if at[way] > (way == ROW_AXIS)]
    found = [table[tuple(a - (way == axis) for axis, a in enumerate(at))] for way in smaller]
    known = [cell for cell in found if not np.isnan(cell)]
    return float(np.median(known)) if known else 0.0


def rising(octaves: np.ndarray) -> np.ndarray:
    """A non-decreasing version of a table, along one axis after the other.

    A value is half-way between the running maximum and the minimum of the values that follow; along
    rows from the second one on (see `_before`).
    """
    result = octaves.copy()
    for way in range(octaves.ndim):
        part = result[:, :, 1:] if way == ROW_AXIS else result
        low = np.flip(np.minimum.accumulate(np.flip(part, axis=way), axis=way), axis=way)
        part[...] = (np.maximum.accumulate(part, axis=way) + low) / 2
    return result


def by_table(
    device: Accelerator,
    table: np.ndarray,
    rows: Columns,
    *,
    axes: tuple[tuple[int, ...], ...],
    elements: int,
    width: float,
) -> np.ndarray:
    """Seconds as the package reads them."""
    points = [np.array(axis) for axis in axes]
    place = (rows["batch_size"], rows["key_heads"], rows["num_heads"] / rows["key_heads"])
    read = rows["key_heads"] * elements * width / device.memory_bandwidth
    slope = read * octave_grid(points, table[1]).ratio(*place)
    return (
        device.launch_s * octave_grid(points, table[0]).ratio(*place)
        + slope * rows["batch_size"] * rows["context"]
    )


def decode_entries(raw: Path, name: str, machine: Machine) -> tuple[Arrays, list[Line]]:
    """Tables of every library, cache format and head size, with their errors on all rows.

    Errors are of cells of the grid, and of rows between them (other ratios of heads).
    """
    heads: dict[str, np.ndarray] = {}
    latents: dict[str, np.ndarray] = {}
    lines: list[Line] = []
    for library, (theirs, kv, bits) in product(LIBRARIES, CACHES):
        found = rows_of(
            raw,
            name,
            "attention",
            library,
            "generation_attention_perf.parquet",
            kv_cache_dtype=theirs,
            window_size=0,
        )
        errors: list[tuple[np.ndarray, np.ndarray]] = []
        for dim in DIMS if found else ():
            rows = some(found, found["head_dim"] == dim)
            if not len(rows["seconds"]):
                continue
            rows = some(rows, rows["kernel_source"] == usual_kernel(rows))
            rows |= {"context": rows["step"] + 1.0, "key_heads": rows["num_key_value_heads"]}
            shape = AttentionShape(heads=1, kv_heads=1, head_dim=dim, value_dim=dim)
            table, error = judged(
                machine,
                rows,
                shape=shape,
                kv=kv,
                elements=2 * dim,
                axes=(SEQUENCES, KEY_HEADS, ROWS),
            )
            if table.size:
                heads[f"{library} {bits} {dim} {dim}"] = table
                errors.append(error)
        lines += _lines(name, f"decode attention, {library}, {theirs} cache", errors)
        rows = rows_of(
            raw, name, "mla", library, "generation_mla_perf.parquet", kv_cache_dtype=theirs
        )
        if not rows:
            continue
        rows |= {"context": rows["step"] + 1.0, "key_heads": np.ones_like(rows["num_heads"])}
        shape = LatentSizes(heads=128, width=LATENT[0], rope=LATENT[1]).core()
        table, error = judged(
            machine,
            rows,
            shape=shape,
            kv=kv,
            elements=sum(LATENT),
            axes=(SEQUENCES, (1, 2), LATENT_ROWS),
        )
        if (
            table.size
            and np.median(table[1][SEQUENCES.index(64) :, :, : LATENT_ROWS.index(32)])
            < SLOWEST * STEPS
        ):
            latents[f"{library} {bits} {sum(LATENT)} {LATENT[0]}"] = table
            lines += _lines(name, f"latent attention, {library}, {theirs} cache", [error])
    arrays = {}
    for kind, tables, axes in (
        ("decode", heads, (SEQUENCES, KEY_HEADS, ROWS)),
        ("latent", latents, (SEQUENCES, (1, 2), LATENT_ROWS)),
    ):
        if tables:
            arrays |= packed(
                kind, tables, dict(zip(("sequences", "key_heads", "rows"), axes, strict=True))
            )
    return arrays, lines


def usual_kernel(rows: Columns) -> str:
    """What most rows are of: some were measured with a second kernel too."""
    names, counts = np.unique(rows["kernel_source"].astype(str), return_counts=True)
    return str(names[np.argmax(counts)])


def judged(
    machine: Machine,
    rows: Columns,
    *,
    shape: AttentionShape,
    kv: NumberFormat,
    elements: int,
    axes: tuple[tuple[int, ...], ...],
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """A table, and errors of the formula and of it."""
    device = machine.accelerator
    whole = (
        (rows["context"] >= SHORTEST)
        & (rows["context"] <= LONGEST)
        & (rows["num_heads"] % rows["key_heads"] == 0)
    )
    rows = some(rows, whole)
    fair = from_memory(device.name.split(" ")[0], rows, elements=elements, width=kv.bytes)
    table = table_of(
        device, rows, fair, elements=elements, width=kv.bytes, key_heads=axes[1], heads=axes[2]
    )
    kept = some(rows, fair)
    if not table.size:
        return table, (np.zeros(0), np.zeros(0))
    start, slope = decode_columns(
        replace(machine, accelerator=replace(device, name="")),
        shape,
        kv=kv,
        heads=kept["num_heads"],
        kv_heads=kept["key_heads"],
        sequences=kept["batch_size"],
    )
    formula = start + slope * kept["batch_size"] * kept["context"]
    predicted = by_table(device, table, kept, axes=axes, elements=elements, width=kv.bytes)
    return table, (np.abs(formula / kept["seconds"] - 1), np.abs(predicted / kept["seconds"] - 1))


def _lines(name: str, what: str, errors: list[tuple[np.ndarray, np.ndarray]]) -> list[Line]:
    if not errors:
        return []
    return [
        Line(
            name=name,
            what=what,
            formula=np.concatenate([e[0] for e in errors]),
            table=np.concatenate([e[1] for e in errors]),
        )
    ]
