"""Write the shipped kernel tables and docs/kernels.md from raw tables of aiconfigurator-core.

    pip download --no-deps aiconfigurator-core==0.12.0
    unzip aiconfigurator_core-*.whl -d raw
    pip install pyarrow scipy
    PYTHONPATH=src python tools/kernel_tables.py raw/aiconfigurator_core

Run it again when the four numbers of an accelerator's GEMM rates change: the grids hold measured
seconds over that roofline, and a grid over other numbers is not used. Nothing here is fitted to a
training run. What is left out of a raw row, and why, is said at each function.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.ndimage import distance_transform_edt

from shardwright.cost.kernels.measured_kernel_factors import TILE, roofline_seconds, tile_padding
from shardwright.dtype import Dtype
from shardwright.hardware.accelerator import Accelerator, GemmRates
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    STEPS_PER_OCTAVE,
    GemmGrid,
    gemm_correction,
)

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "src" / "shardwright" / "hardware" / "tables"
PAGE = ROOT / "docs" / "kernels.md"
SEED = 20


@dataclass(frozen=True, kw_only=True)
class Raw:
    """The source of an accelerator's raw rows.

    A folder, and versions of TensorRT-LLM (GEMM, MoE, MLA), vLLM (attention) and NCCL.
    """

    name: str
    folder: str
    trtllm: str
    vllm: str
    nccl: str
    generation: str
    mla: str = ""


SOURCES = (
    Raw(
        name="a100-sxm-80gb",
        folder="a100_sxm",
        trtllm="1.0.0",
        vllm="0.14.0",
        nccl="2.27.3",
        generation="flash-2",
        mla="1.0.0",
    ),
    Raw(
        name="h100-sxm",
        folder="h100_sxm",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.27.3",
        generation="flash-3",
    ),
    Raw(
        name="h200-sxm",
        folder="h200_sxm",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.29.2",
        generation="flash-3",
    ),
    Raw(
        name="b200-sxm",
        folder="b200_sxm",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.29.2",
        generation="cudnn",
    ),
    Raw(
        name="b300-sxm",
        folder="b300_sxm",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.29.2",
        generation="cudnn",
    ),
    Raw(
        name="gb200-nvl72",
        folder="gb200",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.29.2",
        generation="cudnn",
    ),
    Raw(
        name="gb300-nvl72",
        folder="gb300",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.29.2",
        generation="cudnn",
    ),
    Raw(
        name="l40s",
        folder="l40s",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.27.3",
        generation="flash-2",
        mla="1.0.0",
    ),
    Raw(
        name="rtx-pro-6000",
        folder="rtx_pro_6000_server",
        trtllm="1.3.0rc20",
        vllm="0.24.0",
        nccl="2.29.2",
        generation="flash-2",
    ),
)

GEMM_DTYPES = ((Dtype.BF16, "bfloat16"), (Dtype.FP8, "fp8"), (Dtype.FP4, "nvfp4"))
GRID_M = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768)
GRID_NK = (
    64,
    128,
    256,
    512,
    768,
    1024,
    1536,
    2048,
    2560,
    3072,
    3584,
    4096,
    5120,
    6144,
    7168,
    8192,
    10240,
    12288,
    16384,
    51200,
    65536,
)
LENGTHS = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
HEADS = (4, 8, 16, 32, 64, 128, 256, 512)
# Beyond 1024 tokens an expert there are only two models with 8 experts each, some of them 2.5 times
# slower sharded: tuning accidents.
TOKENS = tuple(2**i for i in range(4, 11))
WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}

Columns = dict[str, np.ndarray]


def read(path: Path, **wanted: object) -> Columns:
    """Columns of the rows with the wanted values, with the latency in seconds under ``seconds``.

    A column that the table lacks selects no row.
    """
    if not path.exists():
        return {}
    table = pq.read_table(path)
    columns = {
        name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names
    }
    chosen = np.ones(table.num_rows, dtype=bool)
    for name, value in wanted.items():
        if name in columns:
            chosen &= columns[name] == value
    result = {name: column[chosen] for name, column in columns.items()}
    result["seconds"] = result.pop("latency").astype(np.float64) * 1e-3
    return result


def nearest_filled(values: np.ndarray) -> np.ndarray:
    """`values` with each nan replaced by the nearest number (in steps of the grid)."""
    place = distance_transform_edt(np.isnan(values), return_distances=False, return_indices=True)
    return values[tuple(place)]


# GEMM ---------------------------------------------------------------------------------------------


def whole(device: Accelerator, rates: GemmRates, rows: Columns) -> np.ndarray:
    """Seconds of the four-number roofline with its overhead."""
    m, n, k = (rows[axis].astype(np.float64) for axis in "mnk")
    joined = roofline_seconds(
        rates,
        peak=device.peak(rates.dtype),
        bandwidth=device.memory_bandwidth,
        width=rates.dtype.bits / 8,
        m=m,
        n=n,
        k=k,
    )
    return joined + rates.overhead_s


def gemm_table(
    device: Accelerator, rates: GemmRates, rows: Columns, *, axes: tuple[tuple[int, ...], ...]
) -> dict[str, np.ndarray]:
    """The grid as it is stored: only rows that lie on its points, none averaged."""
    octaves = np.log2(rows["seconds"] / whole(device, rates, rows))
    grid = np.full([len(a) for a in axes], np.nan)
    places = [np.searchsorted(axis, rows[name]) for axis, name in zip(axes, "mnk", strict=True)]
    on = np.ones(len(octaves), dtype=bool)
    for axis, name, place in zip(axes, "mnk", places, strict=True):
        on &= (place < len(axis)) & (
            np.asarray(axis)[np.minimum(place, len(axis) - 1)] == rows[name]
        )
    grid[places[0][on], places[1][on], places[2][on]] = octaves[on]
    measured = ~np.isnan(grid)
    steps = np.clip(np.round(nearest_filled(grid) * STEPS_PER_OCTAVE), -127, 127).astype(np.int8)
    return {
        "m": np.array(axes[0], np.int32),
        "n": np.array(axes[1], np.int32),
        "k": np.array(axes[2], np.int32),
        "steps": steps,
        "measured": np.packbits(measured.reshape(-1)),
        "roofline": np.array([rates.compute_efficiency, rates.memory_efficiency, rates.exponent]),
    }


def grid_of(table: dict[str, np.ndarray], dtype: Dtype) -> GemmGrid:
    """The grid as the package reads it."""
    shape = table["steps"].shape
    return GemmGrid(
        dtype=dtype,
        m=np.log2(table["m"]),
        n=np.log2(table["n"]),
        k=np.log2(table["k"]),
        octaves=table["steps"] / STEPS_PER_OCTAVE,
        measured=np.unpackbits(table["measured"])[: table["steps"].size]
        .astype(bool)
        .reshape(shape),
        compute_efficiency=float(table["roofline"][0]),
        memory_efficiency=float(table["roofline"][1]),
        exponent=float(table["roofline"][2]),
    )


def present(rows: Columns, points: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Those of `points` that the rows have."""
    return tuple(p for p in points if (rows[name] == p).any())


def mean_p90(predicted: np.ndarray, measured: np.ndarray) -> str:
    """Mean and 90th percentile of the relative error."""
    if not len(measured):
        return "-"
    error = np.abs(predicted / measured - 1)
    return f"{100 * error.mean():.1f} / {100 * np.quantile(error, 0.9):.1f}"


def judge_gemm(
    device: Accelerator, rates: GemmRates, rows: Columns, axes: tuple[tuple[int, ...], ...]
) -> list[str]:
    """Errors on rows that the grid did not see, n and k at least 512: roofline and grid.

    between m: multiples of 64 that are no grid point. left out: rows on every second n and k,
    judged by a grid of the other half. ragged m: one row more than a multiple of 64, by the grid
    without and with the tile term.
    """
    large = (rows["m"] >= 256) & (rows["n"] >= 512) & (rows["k"] >= 512)
    plain = whole(device, rates, rows)

    def by(grid: GemmGrid, which: np.ndarray) -> np.ndarray:
        m, n, k = (rows[axis][which].astype(np.float64) for axis in "mnk")
        return plain[which] * gemm_correction(grid, m=m, n=n, k=k)

    full = grid_of(gemm_table(device, rates, rows, axes=axes), rates.dtype)
    between = large & ~np.isin(rows["m"], axes[0]) & (rows["m"] % 64 == 0)
    half = (axes[0], axes[1][1::2], axes[2][1::2])
    coarse = grid_of(gemm_table(device, rates, rows, axes=half), rates.dtype)
    hidden = (
        large
        & np.isin(rows["m"], axes[0])
        & ~np.isin(rows["n"], half[1])
        & ~np.isin(rows["k"], half[2])
        & np.isin(rows["n"], axes[1])
    )
    ragged = large & (rows["m"] % 64 == 1)
    padded = plain[ragged].copy()
    m, n, k = (rows[axis][ragged].astype(np.float64) for axis in "mnk")
    if len(padded):
        pad = tile_padding(m=m, n=n, k=k)
        with_pad = roofline_seconds(
            rates,
            peak=device.peak(rates.dtype),
            bandwidth=device.memory_bandwidth,
            width=rates.dtype.bits / 8,
            m=m,
            n=n,
            k=k,
            padding=pad,
        )
        padded = (with_pad + rates.overhead_s) * gemm_correction(full, m=m, n=n, k=k)
    seconds = rows["seconds"]
    return [
        mean_p90(plain[between], seconds[between]),
        mean_p90(by(full, between), seconds[between]),
        mean_p90(plain[hidden], seconds[hidden]),
        mean_p90(by(coarse, hidden), seconds[hidden]),
        mean_p90(by(full, ragged), seconds[ragged]),
        mean_p90(padded, seconds[ragged]),
        str(int(between.sum() + hidden.sum() + ragged.sum())),
    ]


# Attention ----------------------------------------------------------------------------------------


def kernel_seconds(
    device: Accelerator, rows: Columns, cached: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the attention kernel alone, and which rows say it well.

    The rows time the serving operator: a fixed start (its fastest row of all) and writing keys and
    values into the paged cache, `cached` elements a sequence token read and written in 16 bits at
    the rate of element-wise kernels. Without both, 8 and 32 key heads agree (H100, 32 heads of 128,
    4096 tokens: .577 and .570 of peak; with them .526 and .456). Rows where they are over 40 % are
    left out.
    """
    start = rows["seconds"].min()
    tokens = rows["batch_size"].astype(np.float64) * rows["isl"]
    extra = start + 4.0 * tokens * cached / (device.element_efficiency * device.memory_bandwidth)
    return rows["seconds"] - extra, extra < 0.4 * rows["seconds"]


def attention_grid(
    device: Accelerator, rows: Columns, *, dims: int, cached: np.ndarray
) -> dict[str, np.ndarray] | None:
    """Median fraction of peak by (length, sequences x heads), over any number of key heads."""
    seconds, good = kernel_seconds(device, rows, cached)
    length = rows["isl"].astype(np.float64)
    flops = 2.0 * rows["batch_size"] * rows["num_heads"] * length * (length + 1) / 2 * dims
    fraction = flops / np.where(good, seconds, np.inf) / device.peak(Dtype.BF16)
    parallel = rows["batch_size"].astype(np.int64) * rows["num_heads"]
    grid = np.full((len(LENGTHS), len(HEADS)), np.nan)
    for i, size in enumerate(LENGTHS):
        for j, heads in enumerate(HEADS):
            here = good & (rows["isl"] == size) & (parallel == heads)
            if here.any():
                grid[i, j] = np.median(fraction[here])
    if np.isnan(grid).all():
        return None
    # A short row with few heads is all overhead: there fewer heads are taken to slow the kernel as
    # they do at the next length.
    for i in range(len(LENGTHS) - 2, -1, -1):
        known = ~np.isnan(grid[i]) & ~np.isnan(grid[i + 1])
        if known.any():
            ratio = np.median(grid[i][known] / grid[i + 1][known])
            grid[i] = np.where(np.isnan(grid[i]), grid[i + 1] * ratio, grid[i])
    filled = np.clip(nearest_filled(grid), 1 / 65535, 1.0)
    return {
        "length": np.array(LENGTHS, np.int32),
        "heads": np.array(HEADS, np.int32),
        "fraction": np.round(filled * 65535).astype(np.uint16),
    }


def attention_tables(
    raw: Path, source: Raw, device: Accelerator
) -> dict[str, dict[str, np.ndarray]]:
    """Attention tables by head size.

    Head sizes 64, 128, 192 and 256 from vLLM's rows without a window, and MLA (192 and 128) from
    TensorRT-LLM's.
    """
    result: dict[str, dict[str, np.ndarray]] = {}
    path = (
        raw / source.folder / "attention" / "vllm" / source.vllm / "context_attention_perf.parquet"
    )
    rows = read(path, attn_dtype="bfloat16", kv_cache_dtype="bfloat16", window_size=0)
    for dim in (64, 128, 192, 256):
        some = {name: column[rows["head_dim"] == dim] for name, column in rows.items()}
        if len(some["seconds"]):
            table = attention_grid(
                device, some, dims=2 * dim, cached=2.0 * some["num_key_value_heads"] * dim
            )
            if table is not None:
                result[f"{source.generation} {dim} {dim}"] = table
    path = (
        raw
        / source.folder
        / "mla"
        / "trtllm"
        / (source.mla or source.trtllm)
        / "context_mla_perf.parquet"
    )
    latent = read(path, mla_dtype="bfloat16", kv_cache_dtype="bfloat16")
    if latent:
        table = attention_grid(
            device, latent, dims=192 + 128, cached=np.full(len(latent["seconds"]), 576.0)
        )
        if table is not None:
            result[f"{source.generation} 192 128"] = table
    return result


# Experts ------------------------------------------------------------------------------------------


def expert_rows(device: Accelerator, rates: GemmRates, rows: Columns) -> Columns:
    """Grouped GEMMs alone, over their roofline: tokens an expert, width, ratio.

    A row is the whole operator with tokens spread evenly: it copies tokens to their experts, runs
    [h, 2i] and [i, h] with a gate between, and adds up. Copies and sum are subtracted at the rate
    of element-wise kernels (3h elements a routed token, h a token), and a start (the fastest row of
    all). The gate is taken as part of the first GEMM: less its traffic the widest experts would run
    at .92 of an H100's peak, above every dense GEMM. Left out: rows with less than half of their
    time left, experts of less than 16 tokens, and rows of one expert a token or of more than 8
    ranks, where some take 3 to 5 times the rest (tokens seem to fall on one rank).
    """
    h, i = (
        rows["hidden_size"].astype(np.float64),
        rows["inter_size"] / rows["moe_tp_size"].astype(np.float64),
    )
    groups = rows["num_experts"] / rows["moe_ep_size"].astype(np.float64)
    tokens = rows["num_tokens"] * rows["topk"] / rows["num_experts"].astype(np.float64)
    routed = tokens * groups
    traffic = 2.0 * (routed * 3 * h + rows["num_tokens"] * h)
    left = (
        rows["seconds"]
        - rows["seconds"].min()
        - traffic / (device.element_efficiency * device.memory_bandwidth)
    )
    peak, bandwidth, bytes_each = (
        device.peak(rates.dtype),
        device.memory_bandwidth,
        rates.dtype.bits / 8,
    )
    up = roofline_seconds(
        rates,
        peak=peak,
        bandwidth=bandwidth,
        width=bytes_each,
        m=tokens,
        n=2 * i,
        k=h,
        groups=groups,
    )
    down = roofline_seconds(
        rates, peak=peak, bandwidth=bandwidth, width=bytes_each, m=tokens, n=h, k=i, groups=groups
    )
    width = np.sqrt(np.minimum(2 * i, h) * np.minimum(i, h))
    good = (left > 0.5 * rows["seconds"]) & (tokens >= 16) & (i >= 128)
    good &= (rows["topk"] > 1) & (rows["moe_ep_size"] <= 8) & (tokens <= TOKENS[-1] * 1.41)
    model = rows["hidden_size"] * 10**6 + rows["inter_size"]
    return {
        "tokens": tokens[good],
        "width": width[good],
        "ratio": (left / (up + down))[good],
        "model": model[good],
    }


def grouped_table(rows: Columns, *, dtype: Dtype) -> dict[str, np.ndarray]:
    """Median ratio of the rows nearest to each point of the grouped GEMM grid.

    A point takes rows of two models at least: one model alone may be a tuning accident.
    """
    i = np.clip(np.round(np.log2(rows["tokens"])).astype(int) - 4, 0, len(TOKENS) - 1)
    j = np.clip(np.round(np.log2(rows["width"])).astype(int) - 7, 0, len(WIDTHS) - 1)
    grid = np.full((len(TOKENS), len(WIDTHS)), np.nan)
    for a in range(len(TOKENS)):
        for b in range(len(WIDTHS)):
            here = (i == a) & (j == b)
            if here.sum() >= 3 and len(np.unique(rows["model"][here])) >= 2:
                grid[a, b] = np.median(np.log2(rows["ratio"][here]))
    steps = np.clip(np.round(nearest_filled(grid) * STEPS_PER_OCTAVE), -127, 127).astype(np.int8)
    return {
        "tokens": np.array(TOKENS, np.int32),
        "width": np.array(WIDTHS, np.int32),
        "steps": steps,
    }


def judge_grouped(rows: Columns, *, dtype: Dtype) -> list[str]:
    """Errors on a random half of the rows by the roofline, and by a table of the other half."""
    half = np.random.default_rng(SEED).random(len(rows["ratio"])) < 0.5
    table = grouped_table({name: column[half] for name, column in rows.items()}, dtype=dtype)
    i = np.clip(np.round(np.log2(rows["tokens"][~half])).astype(int) - 4, 0, len(TOKENS) - 1)
    j = np.clip(np.round(np.log2(rows["width"][~half])).astype(int) - 7, 0, len(WIDTHS) - 1)
    ratio = rows["ratio"][~half]
    return [
        mean_p90(np.ones_like(ratio), ratio),
        mean_p90(np.exp2(table["steps"][i, j] / STEPS_PER_OCTAVE), ratio),
        str(len(ratio)),
    ]


# Collectives --------------------------------------------------------------------------------------


def curves(raw: Path, source: Raw) -> dict[str, dict[str, np.ndarray]]:
    """Non-decreasing seconds over bytes of the whole tensor, per collective and device count.

    `message_size` of the raw rows counts elements.
    """
    rows = read(
        raw / source.folder / "comm" / "nccl" / source.nccl / "nccl_perf.parquet", nccl_dtype="half"
    )
    node = default_node(accelerator(source.name))
    link = node.scale_up
    result: dict[str, dict[str, np.ndarray]] = {}
    for theirs, ours in KINDS.items():
        for devices in (2, 4, 8):
            here = (rows["op_name"] == theirs) & (rows["num_gpus"] == devices)
            if here.sum() < 8:
                continue
            volume = np.unique(rows["message_size"][here])
            seconds = np.array(
                [np.median(rows["seconds"][here & (rows["message_size"] == v)]) for v in volume]
            )
            result[f"{ours} {devices}"] = {
                "volume": volume.astype(np.int64) * 2,
                "seconds": np.maximum.accumulate(seconds).astype(np.float32),
                "link": np.array(
                    [link.achieved, link.latency_s, link.efficiency, node.in_network_reduction]
                ),
            }
    return result


# Pages --------------------------------------------------------------------------------------------


def build(raw: Path, source: Raw) -> tuple[dict[str, np.ndarray], list[list[str]], list[list[str]]]:
    """Arrays of one accelerator, and its lines of the GEMM and the experts' table of the page."""
    device = accelerator(source.name)
    arrays: dict[str, np.ndarray] = {}
    gemm_lines, expert_lines = [], []

    def keep(kind: str, entries: dict[str, dict[str, np.ndarray]]) -> None:
        arrays.update(
            {
                f"{kind}|{entry}|{field}": array
                for entry, fields in entries.items()
                for field, array in fields.items()
            }
        )

    for dtype, theirs in GEMM_DTYPES:
        rates = next((r for r in device.gemm if r.dtype is dtype), None)
        rows = read(
            raw / source.folder / "gemm" / "trtllm" / source.trtllm / "gemm_perf.parquet",
            gemm_dtype=theirs,
        )
        if rates is None or not len(rows.get("seconds", ())):
            continue
        axes = (
            present(rows, GRID_M, "m"),
            present(rows, GRID_NK, "n"),
            present(rows, GRID_NK, "k"),
        )
        keep("gemm", {dtype.value: gemm_table(device, rates, rows, axes=axes)})
        gemm_lines.append([source.name, dtype.value, *judge_gemm(device, rates, rows, axes)])
        moe = read(
            raw / source.folder / "moe" / "trtllm" / source.trtllm / "moe_perf.parquet",
            moe_dtype=theirs,
            distribution="balanced",
        )
        if moe:
            gated = {
                name: column[moe["kernel_source"] != "moe_torch_flow_nongated"]
                for name, column in moe.items()
            }
            experts = expert_rows(device, rates, gated) if len(gated["seconds"]) else {"ratio": ()}
            # Held-out errors of 50 % and more: fp4 rows of B200 and GB200 hold several kernels
            # under one name.
            if len(experts["ratio"]) >= 200 and not (
                dtype is Dtype.FP4 and source.name in ("b200-sxm", "gb200-nvl72")
            ):
                keep("grouped", {dtype.value: grouped_table(experts, dtype=dtype)})
                expert_lines.append(
                    [source.name, dtype.value, *judge_grouped(experts, dtype=dtype)]
                )
    keep("attention", attention_tables(raw, source, device))
    keep("curve", curves(raw, source))
    return arrays, gemm_lines, expert_lines


def lines_of(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)
    )


def main(raw: Path) -> None:
    """Write every file and the page."""
    gemm: list[list[str]] = []
    experts: list[list[str]] = []
    size = 0
    for source in SOURCES:
        arrays, gemm_lines, expert_lines = build(raw / "systems" / "data", source)
        path = TABLES / f"{source.name}.npz"
        np.savez_compressed(path, **arrays)
        size += path.stat().st_size
        gemm += gemm_lines
        experts += expert_lines
        sys.stdout.write(f"{source.name}: {path.stat().st_size} bytes\n")
    head = [
        "accelerator",
        "dtype",
        "between m: roofline",
        "grid",
        "left out: roofline",
        "grid",
        "ragged m: grid",
        "with tiles",
        "rows",
    ]
    text = (Path(__file__).with_name("kernels_page.md")).read_text()
    text = (
        text.replace("{gemm}", lines_of(head, gemm))
        .replace("{tile}", str(TILE))
        .replace("{kib}", str(round(size / 1024)))
    )
    text = text.replace(
        "{experts}", lines_of(["accelerator", "dtype", "roofline", "table", "rows"], experts)
    )
    PAGE.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
