"""Measured tables of serving kernels that ship with the package, and their lookups.

They cover decode attention, matrix multiplications, experts, all-reduces and token exchanges. One
compressed file an accelerator beside its kernel tables, written by ``tools/serving_tables.py``,
read when a serving engine is priced on it first. Every entry is a ratio over a formula whose
numbers are stored with it, or a curve with the link that it was measured on, so a price rescales
with the device. Source: aiconfigurator-core 0.12.0 (Apache-2.0), see
``hardware/tables/ATTRIBUTION.txt``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from shardwright.arrays import FloatArray, IntArray
from shardwright.dtype import Dtype
from shardwright.hardware import tables
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    SAME_DIE,
    SAME_LINKS,
    TABLES,
    CollectiveCurve,
)
from shardwright.hardware.cluster import NodeKind
from shardwright.lazily_compiled_dataclass import dataclass

STEPS: Final = 12
"""Logarithms of ratios are stored in twelfths of an octave (6 %, so at most 3 % from the
measurement).
"""

SERVED: Final = TABLES
"""Accelerators with a table of their own."""

LIBRARIES: Final = ("sglang", "vllm", "trtllm")
"""Engines whose kernels were measured, in the order in which their tables stand in for an engine
without any.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OctaveGrid:
    """log2 of measured over formula seconds on a grid of sizes.

    Args:
        axes: one array a size, log2 of its grid points, rising; two points at least each.
        octaves: one number a grid point.
    """

    axes: tuple[FloatArray, ...]
    octaves: FloatArray

    def ratio(self, *sizes: FloatArray) -> FloatArray:
        """Measured over formula seconds at each tuple of sizes, linear between logarithms.

        Linear in the logarithms of all sizes, and constant beyond the edges.

        Args:
            sizes: one array a size.
        """
        shape = np.broadcast_shapes(*(np.shape(size) for size in sizes))
        corners: list[tuple[tuple[IntArray, FloatArray], tuple[IntArray, FloatArray]]] = []
        for axis, size in zip(self.axes, sizes, strict=True):
            log = np.log2(
                np.maximum(np.broadcast_to(np.asarray(size, dtype=np.float64), shape), 1e-30)
            )
            low = np.clip(np.searchsorted(axis, log, side="right") - 1, 0, len(axis) - 2)
            share = np.clip((log - axis[low]) / (axis[low + 1] - axis[low]), 0.0, 1.0)
            corners.append(((low, 1.0 - share), (low + 1, share)))
        total = np.zeros(shape)
        for corner in product(*corners):
            weight = np.ones(shape)
            for _, part in corner:
                weight = weight * part
            total += weight * self.octaves[tuple(place for place, _ in corner)]
        return np.asarray(np.exp2(total), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTable:
    """Decode attention of one kernel: seconds over a formula by sequences, key heads and rows.

    Rows are query heads x tokens of a key head.

    Args:
        library: engine.
        cached: bits of a cached element.
        head_dim, value_dim: of a head, or of a latent.
        start: seconds without any context over the device's launch.
        slope: seconds a cached token over reading it at peak bandwidth.
    """

    library: str
    cached: int
    head_dim: int
    value_dim: int
    start: OctaveGrid
    slope: OctaveGrid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedForm:
    """Fitted roofline of one kernel: launches, compute and memory efficiency, and exponent.

    t = launches x launch + ((FLOPs / (ec P))^q + (bytes / (em BW))^q)^(1/q)
    """

    launches: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductTable:
    """GEMMs of one library in one pair of number formats: fitted roofline and measured ratios.

    Args:
        weights: format in which the weights are stored.
        multiplied: format of the units that multiply.
        form: fitted roofline.
        grid: measured seconds over it, by m, n and k.
    """

    library: str
    weights: str
    multiplied: Dtype
    form: FittedForm
    grid: OctaveGrid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertTable:
    """Routed-experts operator of one kernel in one pair of formats: roofline and measured ratios.

    Args:
        kernel: library, a slash and the kernel's name.
        form: fitted roofline.
        grid: measured seconds over it, by tokens an expert, by an expert's width on a device and by
            experts on a device.
    """

    kernel: str
    weights: str
    multiplied: Dtype
    form: FittedForm
    grid: OctaveGrid

    @property
    def library(self) -> str:
        """Name of the engine: the part of the kernel's name before the slash."""
        return self.kernel.partition("/")[0]


class _HasLibrary(Protocol):
    """A table with the name of its engine."""

    @property
    def library(self) -> str: ...


_T = TypeVar("_T", bound=_HasLibrary)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingTables:
    """All serving kernel tables of one accelerator."""

    accelerator: str
    decodes: tuple[DecodeTable, ...]
    products: tuple[ProductTable, ...]
    experts: tuple[ExpertTable, ...]
    curves: tuple[CollectiveCurve, ...]

    def decode(self, *, shape: tuple[int, int], cached: int, library: str) -> DecodeTable | None:
        """Decode table of `cached` bits and dims (equal ones: nearest), of `library` or another.

        Where both head dims are equal, the nearest measured dim counts.
        """
        latent = shape[0] != shape[1]
        fitting = [
            d for d in self.decodes if (d.head_dim != d.value_dim) == latent and d.cached == cached
        ]
        if latent:
            return _table_of_library(
                (d for d in fitting if (d.head_dim, d.value_dim) == shape), library
            )
        if not fitting:
            return None
        away = {d.head_dim: abs(float(np.log2(d.head_dim / shape[0]))) for d in fitting}
        return _table_of_library(
            (d for d in fitting if away[d.head_dim] == min(away.values())), library
        )

    def product(self, *, weights: str, multiplied: Dtype, library: str) -> ProductTable | None:
        """GEMM table of a weight and a GEMM format: of `library`, else of another; None if none.

        fp16 runs on the units of bf16; quantisation groups of any size are one kernel's.
        """
        wanted = (_measured_format(weights), Dtype(_measured_format(multiplied)))
        return _table_of_library(
            (p for p in self.products if (p.weights, p.multiplied) == wanted), library
        )

    def expert(self, *, weights: str, multiplied: Dtype, library: str) -> ExpertTable | None:
        """Expert table of two formats: of kernel `library`, else of its engine, else of another."""
        wanted = (_measured_format(weights), Dtype(_measured_format(multiplied)))
        fitting = [e for e in self.experts if (e.weights, e.multiplied) == wanted]
        exact = next((e for e in fitting if e.kernel == library), None)
        return exact or _table_of_library(fitting, library.partition("/")[0])


def _table_of_library(tables: Iterable[_T], library: str) -> _T | None:
    """First table of `library`, else of the others in the order of `LIBRARIES`; None if none."""
    order = (library, *LIBRARIES)
    return min(tables, key=lambda table: order.index(table.library), default=None)


def _measured_format(name: str) -> str:
    """Format whose kernels were measured: ``int4`` for ``int4-group32``, bf16 for fp16."""
    return "bf16" if name == "fp16" else str(name).partition("-")[0]


@lru_cache(maxsize=64)
def serving_tables(accelerator: str) -> ServingTables | None:
    """Serving kernel tables of an accelerator, its own or its die's; None without any."""
    name = SAME_DIE.get(accelerator, accelerator)
    return _load_tables(name) if name in SERVED else None


@lru_cache(maxsize=64)
def engine_curves(node: NodeKind, *, library: str) -> tuple[CollectiveCurve, ...]:
    """Collective curves of engine `library` measured on links like the node's; else empty.

    They hold for links as `measured_gemm_attention_collective_tables.collective_curves` does.
    """
    name = SAME_LINKS.get(node.accelerator.name, node.accelerator.name)
    if name not in SERVED or node.scale_up.latency_s <= 0.0:
        return ()
    own = (node.scale_up.efficiency, node.in_network_reduction)
    curves = [c for c in _load_tables(name).curves if (c.efficiency, c.in_network_reduction) == own]
    return tuple(
        replace(c, collective=c.collective.partition("/")[2])
        for c in curves
        if c.collective.startswith(f"{library}/")
    )


Arrays = dict[str, npt.NDArray[np.generic]]


@lru_cache(maxsize=16)
def _load_tables(name: str) -> ServingTables:
    """Read the serving tables of one accelerator from its file; cached."""
    file = Path(tables.__file__).with_name(f"{name}-serving.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        arrays: Arrays = {key: archive[key] for key in archive.files}
    kinds: dict[str, Arrays] = {}
    for key, array in arrays.items():
        kind, _, field = key.partition("|")
        kinds.setdefault(kind, {})[field] = array
    return ServingTables(
        accelerator=name,
        decodes=tuple(
            table
            for kind in ("decode", "latent")
            for table in map(_stored_decode_table, *_entries(kinds, kind, _DECODE_AXES))
        ),
        products=tuple(map(_stored_gemm_table, *_entries(kinds, "product", ("m", "n", "k")))),
        experts=tuple(
            map(_stored_expert_table, *_entries(kinds, "expert", ("tokens", "width", "experts")))
        ),
        curves=_curves(kinds["curve"]) if "curve" in kinds else (),
    )


_DECODE_AXES: Final = ("sequences", "key_heads", "rows")
Entry = tuple[list[npt.NDArray[np.generic]], npt.NDArray[np.generic], FloatArray]


def _entries(
    kinds: dict[str, Arrays], kind: str, axes: tuple[str, ...]
) -> tuple[list[list[str]], list[Entry]]:
    """(words of each table's name, (axes, steps, form) of each table) of one kind, or ([], [])."""
    if kind not in kinds:
        return [], []
    fields = kinds[kind]
    names = _names(fields)
    forms = _floats(fields["form"]) if "form" in fields else np.zeros((len(names), 4))
    points = [fields[axis] for axis in axes]
    return [name.split(" ") for name in names], [
        (points, steps, form) for steps, form in zip(fields["steps"], forms, strict=True)
    ]


def _names(fields: Arrays) -> list[str]:
    """Names of the tables of one kind."""
    return bytes(np.asarray(fields["names"], dtype=np.uint8)).decode().split("\n")


def _floats(array: npt.NDArray[np.generic]) -> FloatArray:
    """Read-only float64 copy of an array."""
    result = np.ascontiguousarray(array, dtype=np.float64)
    result.flags.writeable = False
    return result


def octave_grid(
    axes: Iterable[npt.NDArray[np.generic]], steps: npt.NDArray[np.generic]
) -> OctaveGrid:
    """Grid of ratios from its stored form: axis points, and ratios in 1/`STEPS` of an octave."""
    return OctaveGrid(
        axes=tuple(_floats(np.log2(_floats(axis))) for axis in axes),
        octaves=_floats(_floats(steps) / STEPS),
    )


def _stored_decode_table(name: list[str], entry: Entry) -> DecodeTable:
    """Decode table of a stored entry, named ``library cached_bits head_dim value_dim``."""
    axes, steps, _ = entry
    return DecodeTable(
        library=name[0],
        cached=int(name[1]),
        head_dim=int(name[2]),
        value_dim=int(name[3]),
        start=octave_grid(axes, steps[0]),
        slope=octave_grid(axes, steps[1]),
    )


def _fitted_form(form: FloatArray) -> FittedForm:
    """Fitted roofline from (launches, compute efficiency, memory efficiency, exponent)."""
    launches, compute, memory, exponent = form.tolist()
    return FittedForm(
        launches=launches, compute_efficiency=compute, memory_efficiency=memory, exponent=exponent
    )


def _stored_gemm_table(name: list[str], entry: Entry) -> ProductTable:
    """GEMM table of a stored entry; `name` holds library and number formats."""
    axes, steps, form = entry
    return ProductTable(
        library=name[0],
        weights=name[1],
        multiplied=Dtype(name[2]),
        form=_fitted_form(form),
        grid=octave_grid(axes, steps),
    )


def _stored_expert_table(name: list[str], entry: Entry) -> ExpertTable:
    """Experts' table of a stored entry; `name` holds kernel and number formats."""
    axes, steps, form = entry
    return ExpertTable(
        kernel=name[0],
        weights=name[1],
        multiplied=Dtype(name[2]),
        form=_fitted_form(form),
        grid=octave_grid(axes, steps),
    )


def _curves(fields: Arrays) -> tuple[CollectiveCurve, ...]:
    """Collective curves from their stored arrays."""
    ends = np.cumsum(np.asarray(fields["lengths"], dtype=np.int64))
    bandwidth, latency_s, efficiency, reduces = _floats(fields["link"]).tolist()
    found = []
    for name, first, last in zip(
        _names(fields), (0, *ends[:-1].tolist()), ends.tolist(), strict=True
    ):
        collective, devices = name.split(" ")
        found.append(
            CollectiveCurve(
                collective=collective,
                num_devices=int(devices),
                log_volume=_floats(np.log2(_floats(fields["volume"][first:last]))),
                log_seconds=_floats(np.log2(_floats(fields["seconds"][first:last]))),
                bandwidth=bandwidth,
                latency_s=latency_s,
                efficiency=efficiency,
                in_network_reduction=bool(reduces),
            )
        )
    return tuple(found)
