"""Tables of GEMMs of serving engines, and of the routed expert operator.

GEMMs by m, n and k; the expert operator by tokens per expert, width and experts of a device.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from serving_rows import (
    LIBRARIES,
    SEED,
    Arrays,
    Columns,
    Line,
    fitted_form,
    joined,
    packed,
    rows_of,
    smooth_grid,
    some,
    steps_of,
)

from shardwright.cost.inference.engine_gemm_seconds import small_gemm_seconds
from shardwright.cost.inference.routed_experts import routed_experts_seconds
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.measured_serving_kernels import octave_grid
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat

JUDGED = 1000
M = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NK = (128, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 51200)
# Of two pairs of the same formats the first is what an engine is taken to run: most 8-bit
# checkpoints of experts have scales by block.
FORMATS = {
    "bfloat16": (NumberFormat.BF16, Dtype.BF16),
    "fp8_block": (NumberFormat.FP8, Dtype.FP8),
    "fp8": (NumberFormat.FP8, Dtype.FP8),
    "nvfp4": (NumberFormat.NVFP4, Dtype.FP4),
    "w4a16_mxfp4": (NumberFormat.MXFP4, Dtype.BF16),
    "w4a8_mxfp4_mxfp8": (NumberFormat.MXFP4, Dtype.FP8),
    "int4_wo": (NumberFormat.INT4, Dtype.BF16),
}
# TensorRT-LLM's fp8 rows search the largest magnitude each time (13 us), which static scales spare;
# vLLM's fp8_block rows of 0.24 are flat at 55 us (Hopper) and 155 us (Blackwell) at every m: not of
# the kernel.
DENSE = {
    "vllm": ("bfloat16", "fp8", "nvfp4"),
    "sglang": ("bfloat16", "fp8_block", "nvfp4"),
    "trtllm": ("bfloat16", "fp8_block", "nvfp4"),
}


def product_entries(
    raw: Path, name: str, machines: dict[Dtype, Machine]
) -> tuple[Arrays, list[Line]]:
    """Tables of dense GEMMs, with errors on rows that lie on no point of the grid.

    Rows with n and k of 512 and more.
    """
    tables: dict[str, np.ndarray] = {}
    forms: list[np.ndarray] = []
    lines: list[Line] = []
    for library in LIBRARIES:
        for theirs in DENSE[library]:
            weights, multiplied = FORMATS[theirs]
            rows = rows_of(raw, name, "gemm", library, "gemm_perf.parquet", gemm_dtype=theirs)
            if not rows or not len(rows["seconds"]) or multiplied not in machines:
                continue
            machine = machines[multiplied]
            peak = machine.accelerator.peak(multiplied)
            m, n, k = (rows[axis].astype(np.float64) for axis in "mnk")
            flops, moved = (
                2 * m * n * k,
                n * k * weights.bytes + m * k * multiplied.bits / 8 + 2 * m * n,
            )
            fair = (n >= 512) & (k >= 512)
            form = fitted_form(
                machine.accelerator,
                peak=peak,
                flops=flops[fair],
                moved=moved[fair],
                seconds=rows["seconds"][fair],
            )
            octaves = np.log2(
                rows["seconds"]
                / joined(machine.accelerator, form, peak=peak, flops=flops, moved=moved)
            )
            places, on = _places(rows)
            grid = np.full((len(M), len(NK), len(NK)), np.nan)
            grid[places[0][on], places[1][on], places[2][on]] = octaves[on]
            steps = steps_of(grid)
            tables[f"{library} {weights.value} {multiplied.value}"] = steps
            forms.append(form)
            judged = few_of(fair & ~on & (rows["m"] < 64)), few_of(fair & ~on & (rows["m"] >= 64))
            grid_read = octave_grid([np.array(axis) for axis in (M, NK, NK)], steps)
            for what, few in zip(("m below 64", "m from 64"), judged, strict=True):
                plain = small_gemm_seconds(machine, m=m[few], n=n[few], k=k[few], weights=weights)
                table = grid_read.ratio(m[few], n[few], k[few]) / np.exp2(octaves[few])
                found = np.abs(plain / rows["seconds"][few] - 1)
                lines.append(
                    Line(
                        name=name,
                        what=f"GEMMs, {library}, {theirs}, {what}",
                        formula=found,
                        table=np.abs(table - 1),
                    )
                )
    if not tables:
        return {}, []
    return (
        packed(
            "product", tables, {"m": M, "n": NK, "k": NK}, form=np.stack(forms).astype(np.float32)
        ),
        lines,
    )


def _places(rows: Columns) -> tuple[list[np.ndarray], np.ndarray]:
    places = [np.searchsorted(axis, rows[name]) for axis, name in ((M, "m"), (NK, "n"), (NK, "k"))]
    on = np.ones(len(rows["seconds"]), dtype=bool)
    for axis, name, place in zip((M, NK, NK), "mnk", places, strict=True):
        on &= (place < len(axis)) & (
            np.asarray(axis)[np.minimum(place, len(axis) - 1)] == rows[name]
        )
    return places, on


# Experts ------------------------------------------------------------------------------------------

EACH = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WIDTH = (128, 256, 512, 1024, 2048, 4096, 14336)
LOCAL = (1, 4, 16, 64, 256)
KERNELS = (
    "triton",
    "marlin",
    "min_latency",
    "deepgemm",
    "flashinfer_trtllm",
    "flashinfer_cutlass",
    "cutlass",
)
FEWEST = 200
FITTED = 3000


def kernel_name(library: str, source: str) -> str:
    """Name of a kernel, such as ``vllm/flashinfer-trtllm``, from the long names of the rows.

    gpt-oss's Triton kernels are named Triton, too.
    """
    found = next((kernel for kernel in KERNELS if kernel in source), "default")
    return f"{library}/{found.replace('_', '-')}"


def expert_entries(
    raw: Path, name: str, machines: dict[Dtype, Machine]
) -> tuple[Arrays, list[Line]]:
    """Tables of every kernel and pair of formats with enough balanced rows.

    Each is judged on a table of the other half of the models.
    """
    tables: dict[str, np.ndarray] = {}
    forms: list[np.ndarray] = []
    lines: list[Line] = []
    for library in LIBRARIES:
        every = rows_of(raw, name, "moe", library, "moe_perf.parquet")
        for theirs, (weights, multiplied) in FORMATS.items() if every else ():
            here = (
                (every["moe_dtype"] == theirs) & (every["moe_ep_size"] <= 8) & (every["topk"] > 1)
            )
            here &= ~np.char.endswith(every["kernel_source"].astype(str), "nongated")
            if multiplied not in machines or (theirs == "fp8" and library == "sglang"):
                continue
            kernels = np.array([kernel_name(library, source) for source in every["kernel_source"]])
            for kernel in sorted(
                set(kernels[here]), key=lambda one: -int((kernels[here] == one).sum())
            ):
                entry = (
                    f"{kernel}{'-tensor' if theirs == 'fp8' else ''} {weights.value}"
                    f" {multiplied.value}"
                )
                rows = _expert_columns(
                    some(every, here & (kernels == kernel)), machines[multiplied], weights
                )
                fair = rows["balanced"]
                if fair.sum() < FEWEST or entry in tables:
                    continue
                device, peak = (
                    machines[multiplied].accelerator,
                    machines[multiplied].accelerator.peak(multiplied),
                )
                form, steps = _expert_table(device, peak, some(rows, fair))
                tables[entry], _ = steps, forms.append(form)
                lines += _judge_experts(
                    machines[multiplied],
                    rows,
                    name=name,
                    what=f"experts, {kernel}, {theirs}",
                    weights=weights,
                )
    if not tables:
        return {}, []
    return (
        packed(
            "expert",
            tables,
            {"tokens": EACH, "width": WIDTH, "experts": LOCAL},
            form=np.stack(forms).astype(np.float32),
        ),
        lines,
    )


def _expert_columns(rows: Columns, machine: Machine, weights: NumberFormat) -> Columns:
    """Arguments of the cost formula for each row.

    Balanced rows spread tokens evenly: they reach as many experts as there are copies, at most all.
    """
    tokens, topk, experts = (
        rows[name].astype(np.float64) for name in ("num_tokens", "topk", "num_experts")
    )
    hidden, width = (
        rows["hidden_size"].astype(np.float64),
        rows["inter_size"] / rows["moe_tp_size"].astype(np.float64),
    )
    local = experts / rows["moe_ep_size"]
    balanced = rows["distribution"] == "balanced"
    routed = tokens * topk * local / experts
    active = np.where(
        balanced,
        np.minimum(local, np.maximum(routed, 1.0)),
        local * (1 - (1 - topk / experts) ** tokens),
    )
    moved = active * 3 * hidden * width * weights.bytes + 2 * (
        routed * 3 * (hidden + width) + tokens * hidden
    )
    return {
        "seconds": rows["seconds"],
        "balanced": balanced,
        "tokens": tokens,
        "topk": topk,
        "total": experts,
        "hidden": hidden,
        "width": width,
        "local": local,
        "each": tokens * topk / experts,
        "flops": 6 * routed * hidden * width,
        "moved": moved,
        "model": rows["hidden_size"] * 10**9 + rows["inter_size"] * 10**4 + rows["num_experts"],
    }


def _logs(rows: Columns) -> tuple[np.ndarray, ...]:
    return tuple(np.log2(rows[name]) for name in ("each", "width", "local"))


def _expert_table(device: object, peak: float, rows: Columns) -> tuple[np.ndarray, np.ndarray]:
    form = fitted_form(
        device,
        peak=peak,
        flops=rows["flops"],
        moved=rows["moved"],
        seconds=rows["seconds"],
        exponent=2.0,
    )  # type: ignore[arg-type]
    octaves = np.log2(
        rows["seconds"] / joined(device, form, peak=peak, flops=rows["flops"], moved=rows["moved"])
    )  # type: ignore[arg-type]
    axes = tuple(np.log2(np.array(axis)) for axis in (EACH, WIDTH, LOCAL))
    few = few_of(np.ones(len(octaves), dtype=bool), most=FITTED)
    return form, steps_of(
        smooth_grid(axes, tuple(place[few] for place in _logs(rows)), octaves[few])
    )


def _judge_experts(
    machine: Machine, rows: Columns, *, name: str, what: str, weights: NumberFormat
) -> list[Line]:
    """Errors on the models of one half by a table of the other half, and on all power-law rows.

    A model is (hidden, width, experts); the halves have balanced rows.
    """
    device, peak = machine.accelerator, machine.accelerator.peak(machine.compute)
    models = np.unique(rows["model"])
    chosen = np.random.default_rng(SEED).permutation(models)[: (len(models) + 1) // 2]
    inside = np.isin(rows["model"], chosen)
    found = []
    for label, train, judged in (
        ("other models", rows["balanced"] & inside, rows["balanced"] & ~inside),
        ("power law", rows["balanced"], ~rows["balanced"]),
    ):
        if train.sum() < FEWEST / 2 or not judged.any():
            continue
        form, steps = _expert_table(device, peak, some(rows, train))
        kept = some(rows, few_of(judged))
        ratio = octave_grid([np.array(axis) for axis in (EACH, WIDTH, LOCAL)], steps).ratio(
            kept["each"], kept["width"], kept["local"]
        )
        table = joined(device, form, peak=peak, flops=kept["flops"], moved=kept["moved"]) * ratio
        plain = formula_of_experts(machine, kept, weights)
        found.append(
            Line(
                name=name,
                what=f"{what}, {label}",
                formula=np.abs(plain / kept["seconds"] - 1),
                table=np.abs(table / kept["seconds"] - 1),
            )
        )
    return found


def few_of(chosen: np.ndarray, *, most: int = JUDGED) -> np.ndarray:
    """At most so many of the chosen rows, drawn alike."""
    places = np.flatnonzero(chosen)
    return (
        places
        if len(places) <= most
        else np.sort(np.random.default_rng(SEED).choice(places, most, replace=False))
    )


def formula_of_experts(machine: Machine, rows: Columns, weights: NumberFormat) -> np.ndarray:
    """The package's own price without a table, shape by shape."""
    result = np.zeros(len(rows["seconds"]))
    shapes = np.stack(
        [rows[name] for name in ("total", "topk", "hidden", "width", "local")], axis=1
    )
    kinds, which = np.unique(shapes, axis=0, return_inverse=True)
    for number, (total, topk, hidden, width, local) in enumerate(kinds):
        here = which.ravel() == number
        result[here] = routed_experts_seconds(
            machine,
            tokens=rows["tokens"][here],
            experts=int(total),
            topk=int(topk),
            hidden=int(hidden),
            width=width,  # a share of a matrix: no whole number where it is cut finely
            local=local,
            weights=weights,
        )
    return result
