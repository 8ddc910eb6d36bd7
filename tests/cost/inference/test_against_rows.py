"""Shipped tables against raw rows that lie on none of their points: figures of aiconfigurator-core
0.12.0 (`tools/serving_samples.py`)."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwright.cost.inference.engine_gemm_seconds import small_gemm_seconds
from shardwright.cost.inference.routed_experts import routed_experts_seconds
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.dtype import Dtype
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.ir.operator import AttentionShape
from tests.cost.inference.serving_machines import decode_attention, machine, untabled

FOLDER = Path(__file__).parent
CACHES = {"bfloat16": NumberFormat.BF16, "fp8": NumberFormat.FP8}
HEAD = AttentionShape(heads=1, kv_heads=1, head_dim=128, value_dim=128)


def rows_of(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"samples_{name}.csv").open() as stream:
        return list(csv.DictReader(stream))


def short_run(device: str, dtype: Dtype = Dtype.BF16) -> Machine:
    """Rows are short runs: no sustained clock."""
    one = machine(device, dtype)
    return replace(one, gemm=replace(one.gemm, sustained=1.0))


def decode_error(row: dict[str, str], *, tabled: bool) -> float:
    one = machine(row["device"]) if tabled else untabled(machine(row["device"]))
    spent = decode_attention(
        one,
        HEAD,
        kv=CACHES[row["cache"]],
        heads=int(row["heads"]),
        kv_heads=int(row["key_heads"]),
        sequences=np.array([int(row["sequences"])]),
        context=np.array([int(row["step"]) + 1.0]),
        library=row["library"],
    )
    return abs(float(spent[0]) / float(row["seconds"]) - 1)


def product_error(row: dict[str, str], *, tabled: bool) -> float:
    one = short_run(row["device"], Dtype(row["multiplied"]))
    spent = small_gemm_seconds(
        one if tabled else untabled(one),
        m=np.array([int(row["m"])]),
        n=int(row["n"]),
        k=int(row["k"]),
        weights=NumberFormat(row["weights"]),
        library=row["library"],
    )
    return abs(float(spent[0]) / float(row["seconds"]) - 1)


def expert_error(row: dict[str, str], *, tabled: bool) -> float:
    one = short_run(row["device"])
    spent = routed_experts_seconds(
        one if tabled else untabled(one),
        tokens=np.array([int(row["tokens"])]),
        experts=int(row["experts"]),
        topk=int(row["topk"]),
        hidden=int(row["hidden"]),
        width=int(row["width"]),
        etp=int(row["etp"]),
        local=int(row["experts"]) // int(row["ep"]),
        library=row["library"],
    )
    return abs(float(spent[0]) / float(row["seconds"]) - 1)


@pytest.mark.parametrize(
    ("family", "error", "by_table", "by_formula"),
    [
        ("decode", decode_error, 0.12, 0.40),
        ("products", product_error, 0.06, 0.20),
        ("experts", expert_error, 0.18, 0.45),
    ],
)
def test_median_error(family: str, error: object, by_table: float, by_formula: float) -> None:
    rows = rows_of(family)
    assert callable(error)
    tables, formulas = (
        float(np.median([error(row, tabled=tabled) for row in rows])) for tabled in (True, False)
    )
    assert tables < by_table
    assert tables < formulas < by_formula
