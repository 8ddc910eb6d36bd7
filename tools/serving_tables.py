"""Write the shipped serving kernel tables and docs/serving-kernels.md from aiconfigurator-core.

    pip download --no-deps aiconfigurator-core==0.12.0
    unzip aiconfigurator_core-*.whl -d raw -x '*silicon_sample*'
    pip install pyarrow scipy
    PYTHONPATH=src python tools/serving_tables.py raw/aiconfigurator_core

Run it again when rates of products or a link of an accelerator that has tables change. Nothing here
is fitted to a run of an engine; the file of runs in that package (silicon_sample.csv) is not
opened. What is left out of a raw row, and why, is said at each function.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from kernel_tables import SOURCES, TABLES, lines_of
from serving_decode import decode_entries
from serving_moves import move_entries
from serving_products import expert_entries, product_entries
from serving_rows import Line

from shardwright.cost.kernels.accelerator_rates import Machine, machine_of
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.fitted_training_constants import Constants
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "serving-kernels.md"
HEAD = ["accelerator", "kernel", "formula", "table", "rows"]


def short_run(name: str, dtype: Dtype) -> Machine:
    """The accelerator's rates at the clock of short runs, without measured tables.

    The tables were measured in short runs.
    """
    device = accelerator(name)
    machine = machine_of(
        device,
        compute=dtype,
        attention=AttentionKernel.FLASH_3,
        elements=ElementKernels.FUSED,
        constants=Constants(),
    )
    gemm, half = (replace(rates, sustained=1.0) for rates in (machine.gemm, machine.half))
    return replace(
        machine, gemm=gemm, half=half, accelerator=replace(device, name=f"{name} without tables")
    )


def main(raw: Path) -> None:
    """Write every file and the page."""
    lines: list[Line] = []
    size = 0
    for name in (source.name for source in SOURCES):
        machines = {
            dtype: short_run(name, dtype)
            for dtype in (Dtype.BF16, Dtype.FP8, Dtype.FP4)
            if accelerator(name).peak(dtype)
        }
        arrays: dict[str, np.ndarray] = {}
        for entries, found in (
            decode_entries(raw, name, machines[Dtype.BF16]),
            product_entries(raw, name, machines),
            expert_entries(raw, name, machines),
            move_entries(raw, name),
        ):
            arrays |= entries
            lines += found
        path = TABLES / f"{name}-serving.npz"
        np.savez_compressed(path, **arrays)
        size += path.stat().st_size
        sys.stdout.write(f"{name}: {path.stat().st_size} bytes\n")
        sys.stdout.flush()
    text = Path(__file__).with_name("serving_page.md").read_text()
    families = {
        "attention": [line for line in lines if "attention" in line.what],
        "products": [line for line in lines if line.what.startswith("GEMMs")],
        "experts": [line for line in lines if line.what.startswith("experts")],
        "moves": [
            line for line in lines if line.what.startswith(("all-reduce", "DeepEP", "one-sided"))
        ],
    }
    for family, some in families.items():
        text = text.replace(f"{{{family}}}", lines_of(HEAD, [line.cells() for line in some]))
    PAGE.write_text(text.replace("{kib}", str(round(size / 1024))))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "systems" / "data")
