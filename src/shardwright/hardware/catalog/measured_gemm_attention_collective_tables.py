"""Measured tables of GEMM, attention and collectives that ship with the package, and lookups.

One compressed file an accelerator, written by ``tools/kernel_tables.py``, read when an accelerator
that has one is priced first. Every entry is a ratio (measured seconds over a formula, a fraction of
peak), or comes with the link that it was measured on, so a price that uses it rescales with the
device. Source: aiconfigurator-core 0.12.0 (Apache-2.0), see ``hardware/tables/ATTRIBUTION.txt``.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import isclose
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.dtype import Dtype
from shardwright.hardware import tables
from shardwright.hardware.accelerator import Evidence, GemmRates, Origin
from shardwright.hardware.cluster import NodeKind
from shardwright.kernel_compilation import allocation_free, inner
from shardwright.lazily_compiled_dataclass import dataclass

Arrays = dict[str, npt.NDArray[np.generic]]

STEPS_PER_OCTAVE: Final = 48
"""Logarithms of ratios are stored in 48ths of an octave (1.5 %)."""

TABLE_ORIGIN: Final = Origin(
    evidence=Evidence.MEASURED, reference="kernel tables of aiconfigurator-core 0.12.0"
)

TABLES: Final = (
    "a100-sxm-80gb",
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
    "b300-sxm",
    "gb200-nvl72",
    "gb300-nvl72",
    "l40s",
    "rtx-pro-6000",
)
"""Accelerators with a table of their own."""

SAME_DIE: Final = {
    "a100-sxm-40gb": "a100-sxm-80gb",
    "a100-pcie-80gb": "a100-sxm-80gb",
    "a100-pcie-40gb": "a100-sxm-80gb",
    "a800-sxm-80gb": "a100-sxm-80gb",
    "h100-sxm-96gb-500w": "h100-sxm",
    "h800-sxm": "h100-sxm",
    "gh200-96gb": "h100-sxm",
}
"""Parts with as many multiprocessors of the same kind, whose kernels have the same shape effects;
clocks are in the rates."""

SAME_LINKS: Final = {"a100-sxm-40gb": "a100-sxm-80gb", "h100-sxm-96gb-500w": "h100-sxm"}
"""Parts on the same board of links and switches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GemmGrid:
    """Measured over roofline seconds of GEMMs of one dtype, on a grid of (m, n, k).

    Args:
        m, n, k: grid points as log2, rising.
        octaves: log2 of the ratio, shape (m, n, k).
        measured: true for points that are measurements; the others repeat the nearest one.
        compute_efficiency, memory_efficiency, exponent: of the roofline, which includes its
            overhead.
    """

    dtype: Dtype
    m: FloatArray
    n: FloatArray
    k: FloatArray
    octaves: FloatArray
    measured: BoolArray
    compute_efficiency: float
    memory_efficiency: float
    exponent: float

    def corrects(self, rates: GemmRates) -> bool:
        """True if `rates` have the efficiencies and exponent that the grid's ratios refer to.

        Other rates (a profile, a user's file) are not corrected.
        """
        own = (self.compute_efficiency, self.memory_efficiency, self.exponent)
        theirs = (rates.compute_efficiency, rates.memory_efficiency, rates.exponent)
        return all(map(partial(isclose, rel_tol=1e-6), own, theirs))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionTable:
    """Fraction of peak of causal forward attention, by length and by sequences x query heads.

    Only scores under the mask count as FLOPs.

    Args:
        generation: of the kernel.
        head_dim, value_dim: of a head.
        length, heads: grid points as log2.
        fraction: shape (length, heads).
    """

    generation: str
    head_dim: int
    value_dim: int
    length: FloatArray
    heads: FloatArray
    fraction: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedTable:
    """Measured over roofline seconds of experts' GEMMs, by tokens an expert and matrix width.

    The width is the smaller side of an expert's matrix.

    Args:
        tokens, width: grid points as log2.
        octaves: log2 of the ratio, shape (tokens, width).
    """

    dtype: Dtype
    tokens: FloatArray
    width: FloatArray
    octaves: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveCurve:
    """Measured seconds of one collective over `num_devices` devices of an island, by volume.

    Volumes are bytes of the full buffer; seconds never fall with them.

    Args:
        collective: such as ``all_reduce``.
        log_volume: log2 of bytes, rising.
        log_seconds: log2, of the same shape.
        bandwidth, latency_s: achieved bytes/s and hop latency of the catalog's link, to which the
            curve belongs.
        efficiency, in_network_reduction: of that link and its switch.
    """

    collective: str
    num_devices: int
    log_volume: FloatArray
    log_seconds: FloatArray
    bandwidth: float
    latency_s: float
    efficiency: float
    in_network_reduction: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelTables:
    """All measured kernel tables of one accelerator."""

    accelerator: str
    gemm: tuple[GemmGrid, ...]
    attention: tuple[AttentionTable, ...]
    grouped: tuple[GroupedTable, ...]
    curves: tuple[CollectiveCurve, ...]

    def gemm_grid(self, dtype: Dtype) -> GemmGrid | None:
        """GEMM grid of `dtype` (of bf16 for fp16); None if there is none."""
        wanted = Dtype.BF16 if dtype is Dtype.FP16 else dtype
        return next((g for g in self.gemm if g.dtype is wanted), None)

    def grouped_table(self, dtype: Dtype) -> GroupedTable | None:
        """Table of experts' GEMMs of `dtype` (of bf16 for fp16); None if there is none."""
        wanted = Dtype.BF16 if dtype is Dtype.FP16 else dtype
        return next((g for g in self.grouped if g.dtype is wanted), None)

    def attention_table(self, *, head_dim: int, value_dim: int) -> AttentionTable | None:
        """Attention table of these dims, else of equal dims nearest their mean in log2, or None."""
        exact = next(
            (a for a in self.attention if (a.head_dim, a.value_dim) == (head_dim, value_dim)), None
        )
        if exact is not None or not self.attention:
            return exact
        square = [a for a in self.attention if a.head_dim == a.value_dim]
        mean = np.log2((head_dim + value_dim) / 2)
        return min(
            square, key=lambda a: abs(float(np.log2(a.head_dim)) - float(mean)), default=None
        )


def gemm_correction(grid: GemmGrid, *, m: FloatArray, n: FloatArray, k: FloatArray) -> FloatArray:
    """GEMM seconds measured over roofline at each (m, n, k): trilinear in log2 of the sizes.

    Beyond the grid's edge the value of the edge holds.
    """
    if not m.shape == n.shape == k.shape:
        m, n, k = (np.ascontiguousarray(side) for side in np.broadcast_arrays(m, n, k))
    result = np.empty(m.size)
    _trilinear(grid.m, grid.n, grid.k, grid.octaves, m, n, k, result)
    return result


@allocation_free
def _trilinear(
    rows: FloatArray,
    columns: FloatArray,
    depths: FloatArray,
    octaves: FloatArray,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    result: FloatArray,
) -> None:
    # Writes the trilinear interpolation of the grid at each (m, n, k), as a ratio, to `result`.
    for at in range(m.size):
        i, f = _spot(rows, m[at])
        j, g = _spot(columns, n[at])
        d, h = _spot(depths, k[at])
        total = 0.0
        for di in range(2):
            for dj in range(2):
                low, high = octaves[i + di, j + dj, d], octaves[i + di, j + dj, d + 1]
                share = (f if di else 1.0 - f) * (g if dj else 1.0 - g)
                total += share * (low + h * (high - low))
        result[at] = 2.0**total


@inner
def _spot(axis: FloatArray, value: float) -> tuple[int, float]:
    """(index of the grid point below `value` on a log2 axis, position to the next, 0 to 1)."""
    log = np.log2(max(value, 1.0))
    low = 0
    while low < axis.size - 2 and axis[low + 1] <= log:
        low += 1
    share = (log - axis[low]) / (axis[low + 1] - axis[low])
    return low, min(max(share, 0.0), 1.0)


def inside_grid(grid: GemmGrid, *, m: FloatArray, n: FloatArray, k: FloatArray) -> BoolArray:
    """True where (m, n, k) lies within the grid and the nearest grid point was measured."""
    inside = np.ones(np.broadcast_shapes(m.shape, n.shape, k.shape), dtype=np.bool_)
    places = []
    for axis, value in ((grid.m, m), (grid.n, n), (grid.k, k)):
        log = np.log2(np.maximum(value, 1.0))
        inside &= (log >= axis[0] - 1e-9) & (log <= axis[-1] + 1e-9)
        place, share = _grid_position(axis, value)
        places.append(place + (share > 0.5))
    return np.asarray(inside & grid.measured[places[0], places[1], places[2]], dtype=np.bool_)


def attention_fraction(
    table: AttentionTable, *, length: FloatArray, heads: FloatArray
) -> FloatArray:
    """Fraction of peak FLOP/s at each length and heads x sequences: bilinear in log2 of both.

    Beyond the grid's edge the value of the edge holds.
    """
    return _bilinear(table.length, table.heads, table.fraction, length, heads)


def grouped_correction(table: GroupedTable, *, tokens: FloatArray, width: FloatArray) -> FloatArray:
    """Expert GEMM seconds, measured over roofline, by (tokens an expert, matrix's smaller side).

    Beyond the grid's edge the value of the edge holds.
    """
    return np.asarray(
        np.exp2(_bilinear(table.tokens, table.width, table.octaves, tokens, width)),
        dtype=np.float64,
    )


def curve_seconds(
    curve: CollectiveCurve, *, volume: FloatArray, bandwidth: FloatArray, latency_s: FloatArray
) -> FloatArray:
    """Seconds of a collective over a full buffer of `volume` bytes, curve rescaled to the link.

    Seconds never fall with volume.

        t = s f(volume B / (s b)),   s = latency / L

    with B and L those of the curve's link and b the link's: the only form in which seconds and
    bytes rescale; f is the curve itself where the link is the catalog's. f is linear in logarithms
    between points, flat below the first, and goes on with the bandwidth of the last two points
    beyond the last.
    """
    result = np.empty(volume.size)
    _along(
        curve.log_volume,
        curve.log_seconds,
        curve.bandwidth,
        curve.latency_s,
        volume,
        bandwidth,
        latency_s,
        result,
    )
    return result


@allocation_free
def _along(
    x: FloatArray,
    y: FloatArray,
    own_bandwidth: float,
    own_latency_s: float,
    volume: FloatArray,
    bandwidth: FloatArray,
    latency_s: FloatArray,
    result: FloatArray,
) -> None:
    # Writes the curve's seconds at each volume, bandwidth and latency to `result`.
    last, before = x.size - 1, x.size - 2
    slope = (2.0 ** y[last] - 2.0 ** y[before]) / (2.0 ** x[last] - 2.0 ** x[before])
    for at in range(volume.size):
        slower = latency_s[at] / own_latency_s
        there = volume[at] * (own_bandwidth / bandwidth[at]) / slower
        low, share = _spot(x, there)
        seconds = 2.0 ** (y[low] + share * (y[low + 1] - y[low]))
        result[at] = (seconds + max(there - 2.0 ** x[last], 0.0) * slope) * slower


def load_lookups() -> None:
    """Load (or compile) the compiled lookups of tables and curves by one call each."""
    axis, one = _floats(np.zeros(2)), np.ones(1)
    _trilinear(axis, axis, axis, _floats(np.zeros((2, 2, 2))), one, one, one, np.empty(1))
    _along(axis, axis, 1.0, 1.0, one, one, one, np.empty(1))


def _grid_position(axis: FloatArray, value: FloatArray) -> tuple[IntArray, FloatArray]:
    """(index of the grid point below each value on a log2 axis, position to the next, 0 to 1)."""
    log = np.log2(np.maximum(value, 1.0))
    low = np.minimum(np.maximum(np.searchsorted(axis, log, side="right") - 1, 0), len(axis) - 2)
    share = (log - axis[low]) / (axis[low + 1] - axis[low])
    return low, np.minimum(np.maximum(share, 0.0), 1.0)


def _bilinear(
    first: FloatArray, second: FloatArray, table: FloatArray, x: FloatArray, y: FloatArray
) -> FloatArray:
    """Value of `table` at (x, y), bilinear in log2 of axes `first`, `second`; constant beyond."""
    i, f = _grid_position(first, x)
    j, g = _grid_position(second, y)
    low = table[i, j] + g * (table[i, j + 1] - table[i, j])
    high = table[i + 1, j] + g * (table[i + 1, j + 1] - table[i + 1, j])
    return np.asarray(low + f * (high - low), dtype=np.float64)


@lru_cache(maxsize=64)
def kernel_tables(accelerator: str) -> KernelTables | None:
    """Measured kernel tables of an accelerator, or of another with its die; None without any."""
    name = SAME_DIE.get(accelerator, accelerator)
    return _load_tables(name) if name in TABLES else None


@lru_cache(maxsize=64)
def collective_curves(node: NodeKind) -> tuple[CollectiveCurve, ...]:
    """Collective curves measured on links like the node's (efficiency, reduction); else empty.

    They hold for the catalog's link and for any link that has its latency and bandwidth rescaled. A
    link of another efficiency, without latency, or of a switch that reduces where the catalog's
    does not (or the other way round), is described by its own numbers alone.
    """
    name = SAME_LINKS.get(node.accelerator.name, node.accelerator.name)
    if name not in TABLES or node.scale_up.latency_s <= 0.0:
        return ()
    own = (node.scale_up.efficiency, node.in_network_reduction)
    return tuple(
        c for c in _load_tables(name).curves if (c.efficiency, c.in_network_reduction) == own
    )


@lru_cache(maxsize=16)
def _load_tables(name: str) -> KernelTables:
    """Read the kernel tables of one accelerator from its file; cached."""
    file = Path(tables.__file__).with_name(f"{name}.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        arrays: Arrays = {key: archive[key] for key in archive.files}
    by_kind: dict[str, dict[str, Arrays]] = {
        "gemm": {},
        "attention": {},
        "grouped": {},
        "curve": {},
    }
    for key, array in arrays.items():
        kind, entry, field = key.split("|")
        by_kind[kind].setdefault(entry, {})[field] = array
    return KernelTables(
        accelerator=name,
        gemm=tuple(_stored_gemm_grid(entry, fields) for entry, fields in by_kind["gemm"].items()),
        attention=tuple(
            _stored_attention_table(entry, fields) for entry, fields in by_kind["attention"].items()
        ),
        grouped=tuple(
            _stored_grouped_table(entry, fields) for entry, fields in by_kind["grouped"].items()
        ),
        curves=tuple(_stored_curve(entry, fields) for entry, fields in by_kind["curve"].items()),
    )


def _floats(array: npt.NDArray[np.generic]) -> FloatArray:
    """Read-only float64 copy of an array."""
    result = np.ascontiguousarray(array, dtype=np.float64)
    result.flags.writeable = False
    return result


def _log2(array: npt.NDArray[np.generic]) -> FloatArray:
    """Read-only log2 of an array."""
    return _floats(np.log2(_floats(array)))


def _stored_gemm_grid(entry: str, fields: Arrays) -> GemmGrid:
    """GEMM grid from the arrays of a stored entry, whose name is the dtype."""
    shape = tuple(len(fields[axis]) for axis in ("m", "n", "k"))
    bits = np.unpackbits(np.asarray(fields["measured"], dtype=np.uint8))[
        : shape[0] * shape[1] * shape[2]
    ]
    roofline = _floats(fields["roofline"])
    return GemmGrid(
        dtype=Dtype(entry),
        m=_log2(fields["m"]),
        n=_log2(fields["n"]),
        k=_log2(fields["k"]),
        octaves=_floats(_floats(fields["steps"]) / STEPS_PER_OCTAVE),
        measured=bits.astype(np.bool_).reshape(shape),
        compute_efficiency=float(roofline[0]),
        memory_efficiency=float(roofline[1]),
        exponent=float(roofline[2]),
    )


def _stored_attention_table(entry: str, fields: Arrays) -> AttentionTable:
    """Attention table from the arrays of an entry, named ``generation head_dim value_dim``."""
    generation, head_dim, value_dim = entry.split(" ")
    return AttentionTable(
        generation=generation,
        head_dim=int(head_dim),
        value_dim=int(value_dim),
        length=_log2(fields["length"]),
        heads=_log2(fields["heads"]),
        fraction=_floats(_floats(fields["fraction"]) / 65535.0),
    )


def _stored_grouped_table(entry: str, fields: Arrays) -> GroupedTable:
    """Table of experts' GEMMs from the arrays of a stored entry, whose name is the dtype."""
    return GroupedTable(
        dtype=Dtype(entry),
        tokens=_log2(fields["tokens"]),
        width=_log2(fields["width"]),
        octaves=_floats(_floats(fields["steps"]) / STEPS_PER_OCTAVE),
    )


def _stored_curve(entry: str, fields: Arrays) -> CollectiveCurve:
    """Collective curve from the arrays of a stored entry, named ``collective devices``."""
    collective, devices = entry.split(" ")
    link = _floats(fields["link"])
    return CollectiveCurve(
        collective=collective,
        num_devices=int(devices),
        log_volume=_log2(fields["volume"]),
        log_seconds=_log2(fields["seconds"]),
        bandwidth=float(link[0]),
        latency_s=float(link[1]),
        efficiency=float(link[2]),
        in_network_reduction=bool(link[3]),
    )
