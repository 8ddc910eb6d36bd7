"""Measured tables of serving kernels that ship with the package: decode attention, products, experts, sums, exchanges of tokens.

One compressed file an accelerator beside its kernel tables, written by ``tools/serving_tables.py``, read when a serving engine is priced on
it first. Every entry is a ratio over a formula whose numbers are stored with it, or a curve with the link that it was measured on, so a
price rescales with the device. Source: aiconfigurator-core 0.12.0 (Apache-2.0), see ``hardware/tables/ATTRIBUTION.txt``.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from shardwright.arrays import FloatArray
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.kernel_tables import SAME_DIE, SAME_LINKS, STEPS_PER_OCTAVE, CollectiveCurve
from shardwright.hardware.catalog.octaves import OctaveGrid
from shardwright.hardware.cluster import NodeKind

SERVED: Final[tuple[str, ...]] = ()
"""Accelerators with a table of their own."""

LIBRARIES: Final = ("sglang", "vllm", "trtllm")
"""Engines whose kernels were measured, in the order in which they are asked where the one that is meant has none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTable:
    """Decode attention of one kernel: over sequences, key heads of a device, and rows (query heads x tokens of a key head).

    Args:
        library: engine. cached: bits of a cached element. head_dim, value_dim: of a head, or of a latent.
        start: seconds without any context over the device's launch. slope: seconds a cached token over reading it at peak bandwidth.
    """

    library: str
    cached: int
    head_dim: int
    value_dim: int
    start: OctaveGrid
    slope: OctaveGrid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedForm:
    """t = launches x launch + ((FLOPs / (ec P))^q + (bytes / (em BW))^q)^(1/q), fitted to one kernel's rows."""

    launches: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductTable:
    """Products of one library in one pair of formats.

    Args:
        weights: format they are stored in. multiplied: units that multiply. form: fitted. grid: measured over it, by m, n and k.
    """

    library: str
    weights: str
    multiplied: Dtype
    form: FittedForm
    grid: OctaveGrid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertTable:
    """The operator of routed experts of one kernel in one pair of formats.

    Args:
        kernel: library, a stroke and the kernel's name. form: fitted. grid: measured over it, by tokens an expert, by an expert's width
            on a device and by experts on a device.
    """

    kernel: str
    weights: str
    multiplied: Dtype
    form: FittedForm
    grid: OctaveGrid

    @property
    def library(self) -> str:
        """The engine."""
        return self.kernel.partition("/")[0]


class _Named(Protocol):
    @property
    def library(self) -> str: ...


_T = TypeVar("_T", bound=_Named)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingTables:
    """All serving tables of one accelerator."""

    accelerator: str
    decodes: tuple[DecodeTable, ...]
    products: tuple[ProductTable, ...]
    experts: tuple[ExpertTable, ...]
    curves: tuple[CollectiveCurve, ...]

    def decode(self, *, shape: tuple[int, int], cached: int, library: str) -> DecodeTable | None:
        """The library's table for heads of those dims (or of the nearest that is measured, where both are equal) and that cache."""
        latent = shape[0] != shape[1]
        fitting = [d for d in self.decodes if (d.head_dim != d.value_dim) == latent and d.cached == cached]
        if latent:
            return _of_library((d for d in fitting if (d.head_dim, d.value_dim) == shape), library)
        if not fitting:
            return None
        away = {d.head_dim: abs(float(np.log2(d.head_dim / shape[0]))) for d in fitting}
        return _of_library((d for d in fitting if away[d.head_dim] == min(away.values())), library)

    def product(self, *, weights: str, multiplied: Dtype, library: str) -> ProductTable | None:
        """The library's products in those formats; fp16 runs on the units of bf16."""
        wanted = (_sixteen(weights), Dtype(_sixteen(multiplied)))
        return _of_library((p for p in self.products if (p.weights, p.multiplied) == wanted), library)

    def expert(self, *, weights: str, multiplied: Dtype, library: str) -> ExpertTable | None:
        """The experts' operator in those formats: of that kernel (``vllm/triton``), or the first of that library."""
        wanted = (_sixteen(weights), Dtype(_sixteen(multiplied)))
        fitting = [e for e in self.experts if (e.weights, e.multiplied) == wanted]
        exact = next((e for e in fitting if e.kernel == library), None)
        return exact or _of_library(fitting, library.partition("/")[0])


def _of_library(tables: Iterable[_T], library: str) -> _T | None:
    """The first of that library, else of the others in `LIBRARIES`' order."""
    order = (library, *LIBRARIES)
    return min(tables, key=lambda table: order.index(table.library), default=None)


def _sixteen(name: str) -> str:
    return "bf16" if name == "fp16" else str(name)


@lru_cache(maxsize=64)
def serving_tables(accelerator: str) -> ServingTables | None:
    """Tables for the serving kernels of the accelerator of that catalog name, its own or those of the same die; None without any."""
    name = SAME_DIE.get(accelerator, accelerator)
    return _read(name) if name in SERVED else None


@lru_cache(maxsize=64)
def engine_curves(node: NodeKind, *, library: str) -> tuple[CollectiveCurve, ...]:
    """Measured sums of that engine in an island of that kind of node, and exchanges of tokens; empty where there are none.

    They stand for links as `kernel_tables.collective_curves` does.
    """
    name = SAME_LINKS.get(node.accelerator.name, node.accelerator.name)
    if name not in SERVED or node.scale_up.latency_s <= 0.0:
        return ()
    own = (node.scale_up.efficiency, node.in_network_reduction)
    curves = [c for c in _read(name).curves if (c.efficiency, c.in_network_reduction) == own]
    return tuple(replace(c, collective=c.collective.partition("/")[2]) for c in curves if c.collective.startswith(f"{library}/"))


Arrays = dict[str, npt.NDArray[np.generic]]


@lru_cache(maxsize=16)
def _read(name: str) -> ServingTables:
    file = importlib.resources.files("shardwright.hardware.tables").joinpath(f"{name}-serving.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        arrays: Arrays = {key: archive[key] for key in archive.files}
    by_kind: dict[str, dict[str, Arrays]] = {"decode": {}, "product": {}, "expert": {}, "curve": {}}
    for key, array in arrays.items():
        kind, entry, field = key.split("|")
        by_kind[kind].setdefault(entry, {})[field] = array
    return ServingTables(
        accelerator=name,
        decodes=tuple(_decode(entry, fields) for entry, fields in by_kind["decode"].items()),
        products=tuple(_product(entry, fields) for entry, fields in by_kind["product"].items()),
        experts=tuple(_expert(entry, fields) for entry, fields in by_kind["expert"].items()),
        curves=tuple(_curve(entry, fields) for entry, fields in by_kind["curve"].items()),
    )


def _floats(array: npt.NDArray[np.generic]) -> FloatArray:
    result = np.ascontiguousarray(array, dtype=np.float64)
    result.flags.writeable = False
    return result


def octave_grid(axes: Iterable[npt.NDArray[np.generic]], steps: npt.NDArray[np.generic]) -> OctaveGrid:
    """A grid as it is stored: points of the axes, and 48ths of an octave."""
    return OctaveGrid(axes=tuple(_floats(np.log2(_floats(axis))) for axis in axes), octaves=_floats(_floats(steps) / STEPS_PER_OCTAVE))


def _decode(entry: str, fields: Arrays) -> DecodeTable:
    library, cached, head_dim, value_dim = entry.split(" ")
    axes = [fields[axis] for axis in ("sequences", "key_heads", "rows")]
    return DecodeTable(
        library=library,
        cached=int(cached),
        head_dim=int(head_dim),
        value_dim=int(value_dim),
        start=octave_grid(axes, fields["start"]),
        slope=octave_grid(axes, fields["slope"]),
    )


def _form(fields: Arrays) -> FittedForm:
    launches, compute, memory, exponent = _floats(fields["form"])
    return FittedForm(
        launches=float(launches), compute_efficiency=float(compute), memory_efficiency=float(memory), exponent=float(exponent)
    )


def _product(entry: str, fields: Arrays) -> ProductTable:
    library, weights, multiplied = entry.split(" ")
    grid = octave_grid([fields[axis] for axis in ("m", "n", "k")], fields["steps"])
    return ProductTable(library=library, weights=weights, multiplied=Dtype(multiplied), form=_form(fields), grid=grid)


def _expert(entry: str, fields: Arrays) -> ExpertTable:
    kernel, weights, multiplied = entry.split(" ")
    grid = octave_grid([fields[axis] for axis in ("tokens", "width", "experts")], fields["steps"])
    return ExpertTable(kernel=kernel, weights=weights, multiplied=Dtype(multiplied), form=_form(fields), grid=grid)


def _curve(entry: str, fields: Arrays) -> CollectiveCurve:
    collective, devices = entry.split(" ")
    link = _floats(fields["link"])
    return CollectiveCurve(
        collective=collective,
        num_devices=int(devices),
        log_volume=_floats(np.log2(_floats(fields["volume"]))),
        log_seconds=_floats(np.log2(_floats(fields["seconds"]))),
        bandwidth=float(link[0]),
        latency_s=float(link[1]),
        efficiency=float(link[2]),
        in_network_reduction=bool(link[3]),
    )
