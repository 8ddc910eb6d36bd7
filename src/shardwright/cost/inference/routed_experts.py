"""Seconds of routed experts in a serving engine.

One operator, which reads only the weights of experts that some token visits.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.inference.engine_gemm_seconds import fitted_form, fitted_seconds
from shardwright.cost.inference.make_prices_non_decreasing_in_size import non_decreasing_price
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.hardware.catalog.measured_serving_kernels import FittedForm, serving_tables
from shardwright.hardware.catalog.serving_kernel_constants_where_unmeasured import EXPERT_LAUNCHES
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat


def active_experts(tokens: FloatArray, *, experts: int, topk: int, local: float) -> FloatArray:
    """(n,) mean number of a device's `local` experts hit when each token picks `topk` at random.

    T tokens choose k of E experts each: local (1 - (1 - k/E)^T).

    256 experts, 8 a token, 32 of them here: 1 token reaches 1, 32 tokens 20.4, 256 tokens 32. At
    most all; none for no token.
    """
    missed = np.power(max(1.0 - topk / experts, 0.0), np.asarray(tokens, dtype=np.float64))
    return np.asarray(local * (1.0 - missed), dtype=np.float64)


def routed_experts_seconds(
    machine: Machine,
    *,
    tokens: IntArray | FloatArray,
    experts: int,
    topk: int,
    hidden: int,
    width: int,
    local: int,
    etp: int = 1,
    weights: NumberFormat = NumberFormat.BF16,
    skew: float = 1.0,
    library: str = "",
) -> FloatArray:
    """(n,) seconds of a device's whole expert operator: sort, two grouped GEMMs, gate, sum.

        t = fitted_seconds(FLOPs, bytes) x c(tokens an expert, width / etp, local experts)
        FLOPs = 6 R hidden width / etp
        bytes = active x 3 hidden width / etp x weights.bytes
                + 2 (R (3 hidden + 3 width / etp) + tokens x hidden)
        R     = skew x tokens x topk x local / experts

    R: routed copies here. active: see `active_experts`; weights of experts that no token visits are
    not read. The form's numbers and c are those of the kernel's table of the device, else the
    GEMMs' own rates, half of them in FLOPs, with the start of experts' kernels (`EXPERT_LAUNCHES`).
    Never falls with the tokens (`non_decreasing_price`). A device without tokens takes the start.

    Args:
        machine: rates of the format that is multiplied in.
        tokens: tokens that choose among all `experts`: of all ranks whose tokens come here.
        local: experts of this device.
        etp: devices that share an expert.
        weights: format as stored.
        skew: routed copies of the busiest device over the mean.
        library: engine, or engine and kernel (``vllm/triton``).

    Leaves out: the router, shared experts, sums over devices; that skewed experts on one device are
    slower than even ones. Source: tables of aiconfigurator-core 0.12.0 (MoE), balanced and
    power-law rows, docs/serving-kernels.md.
    """
    token_counts = np.asarray(tokens, dtype=np.float64)
    width_of_device = width / etp
    tables = serving_tables(machine.accelerator.name)
    table = (
        tables.expert(weights=weights.value, multiplied=machine.compute, library=library)
        if tables is not None
        else None
    )
    form = table.form if table is not None else _form(machine)

    def price(visiting: FloatArray) -> FloatArray:
        """(n,) seconds of the operator where `visiting` tokens choose among all ranks' experts."""
        routed = skew * visiting * topk * local / experts
        active = active_experts(visiting, experts=experts, topk=topk, local=float(local))
        moved = active * 3.0 * hidden * width_of_device * weights.bytes + 2.0 * (
            routed * 3.0 * (hidden + width_of_device) + visiting * hidden
        )
        spent = fitted_seconds(
            machine, form, flops=6.0 * routed * hidden * width_of_device, moved=moved
        )
        if table is None:
            return spent
        rows = skew * visiting * topk / experts
        return spent * table.grid.ratio(
            rows, np.full(rows.shape, width_of_device), np.full(rows.shape, float(local))
        )

    return np.where(
        token_counts > 0,
        non_decreasing_price(price, token_counts),
        form.launches * machine.accelerator.launch_s,
    )


def _form(machine: Machine) -> FittedForm:
    """Fitted form of experts' kernels without a table: half a large GEMM's compute efficiency.

    As the kernels' fits have .5 of peak and less where a GEMM reaches .8.
    """
    large_gemms = fitted_form(machine)
    return FittedForm(
        launches=EXPERT_LAUNCHES,
        compute_efficiency=large_gemms.compute_efficiency / 2.0,
        memory_efficiency=large_gemms.memory_efficiency,
        exponent=2.0,
    )
