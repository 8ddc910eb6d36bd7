"""Seconds of GEMMs in serving engines: few tokens, quantised weights, casts of the tokens."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.inference.make_prices_non_decreasing_in_size import non_decreasing_price
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.measured_kernel_factors import q_norm
from shardwright.hardware.catalog.measured_serving_kernels import FittedForm, serving_tables
from shardwright.hardware.catalog.serving_kernel_constants_where_unmeasured import (
    SMALL_KERNEL_LAUNCHES,
)
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat


def fitted_seconds(
    machine: Machine, form: FittedForm, *, flops: FloatArray, moved: FloatArray
) -> FloatArray:
    """Seconds of a kernel by the fitted form: launches, plus the q-norm of compute and memory.

    launches x launch + ((FLOPs s / (ec P))^q + (bytes / (em BW))^q)^(1/q)

    The sustained clock s multiplies the multiplications alone.

    Args:
        machine: its peak, its clock and its memory.
        flops, moved: FLOPs and bytes.
    """
    compute = flops * machine.gemm.sustained / (form.compute_efficiency * machine.peak)
    memory = moved / (form.memory_efficiency * machine.accelerator.memory_bandwidth)
    joined = q_norm(np.asarray(compute), np.asarray(memory), exponent=form.exponent)
    return np.asarray(form.launches * machine.accelerator.launch_s + joined, dtype=np.float64)


def fitted_form(machine: Machine) -> FittedForm:
    """Fitted form of the machine's GEMMs: launches, two efficiencies and the exponent.

    Where operands are cast to fewer bits, with the start of a 16-bit GEMM and of a cast.

    Rates of 8 and 4 bits were fitted to TensorRT-LLM's rows, whose start of 13 us includes the
    search for the largest magnitude; the start in vLLM and SGLang (5.3 to 5.7 us on Hopper, 6.1 on
    Blackwell) is that of a 16-bit GEMM and a cast.
    """
    rates, device = machine.gemm, machine.accelerator
    casts = SMALL_KERNEL_LAUNCHES if machine.compute.bits < machine.half_bits else 0.0
    return FittedForm(
        launches=machine.half.overhead_s / device.launch_s + casts,
        compute_efficiency=rates.compute_efficiency,
        memory_efficiency=rates.memory_efficiency,
        exponent=rates.exponent,
    )


def small_gemm_seconds(
    machine: Machine,
    *,
    m: IntArray | FloatArray,
    n: IntArray | int,
    k: IntArray | int,
    weights: NumberFormat = NumberFormat.BF16,
    groups: int = 1,
    library: str = "",
) -> FloatArray:
    """(n,) seconds of `groups` equal GEMMs (m x k)(k x n) in a serving engine.

    Weights are on the right. With the GEMMs' start and the cast of the tokens.

        t = fitted_seconds(2 g m n k,  g (n k x weights.bytes + m k x width + 2 m n)) x c(m, n, k)

    The library's table has the form's numbers and c; without one they are the device's
    (`fitted_form`), c = 1. Never falls with m (`non_decreasing_price`). Weights of fewer bits than
    they are multiplied in (INT4, MXFP4 under 16 bits) are read as they are stored and unpacked on
    the way: the rates are those of the units that multiply. Prices are of kernels in a captured
    graph, one after another.

    Args:
        machine: rates of the format that is multiplied in.
        m: tokens.
        n, k: outputs and inputs.
        weights: their format as stored.
        library: the engine (``vllm``, ``sglang``, ``trtllm``), whose measured kernels are used
            first.

    Leaves out: the cost of unpacking (Marlin's kernels are at .8 of the plain ones beyond 64
    tokens), biases. Source: tables of aiconfigurator-core 0.12.0, docs/serving-kernels.md.
    """
    tokens = np.asarray(m, dtype=np.float64)
    outputs, inputs = (
        np.asarray(side, dtype=np.float64) + np.zeros_like(tokens) for side in (n, k)
    )
    tables = serving_tables(machine.accelerator.name)
    table = (
        tables.product(weights=weights.value, multiplied=machine.compute, library=library)
        if tables is not None
        else None
    )
    form = table.form if table is not None else fitted_form(machine)

    def price(rows: FloatArray) -> FloatArray:
        """(n,) seconds of the GEMMs for `rows` tokens, before they are made non-decreasing."""
        moved = groups * (
            outputs * inputs * weights.bytes
            + rows * inputs * machine.compute.bits / 8
            + 2.0 * rows * outputs
        )
        spent = fitted_seconds(
            machine, form, flops=2.0 * groups * rows * outputs * inputs, moved=moved
        )
        if table is None or groups != 1:
            return spent
        return spent * table.grid.ratio(
            rows, np.broadcast_to(outputs, rows.shape), np.broadcast_to(inputs, rows.shape)
        )

    return non_decreasing_price(price, tokens)
