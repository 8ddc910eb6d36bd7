"""Write small samples of raw rows that lie on no grid point, for tests of the shipped tables.

They are tests/cost/inference/samples_*.csv.

    PYTHONPATH=src python tools/serving_samples.py raw/aiconfigurator_core
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from serving_decode import KEY_HEADS, LONGEST, ROWS, SEQUENCES, SHORTEST, usual_kernel
from serving_products import DENSE, FORMATS, NK, M
from serving_rows import LIBRARIES, SEED, Columns, rows_of, some

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "cost" / "inference"
DEVICES = ("h200-sxm", "b200-sxm")
EACH = 12


def drawn(rows: Columns, which: np.ndarray) -> Columns:
    """A few of the chosen rows."""
    places = np.flatnonzero(which)
    picked = np.random.default_rng(SEED).choice(places, min(EACH, len(places)), replace=False)
    return some(rows, np.sort(picked))


def write(name: str, header: list[str], lines: list[list[object]]) -> None:
    """One file."""
    with (FOLDER / f"samples_{name}.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)


def main(raw: Path) -> None:
    """Write all three."""
    decode: list[list[object]] = []
    products: list[list[object]] = []
    experts: list[list[object]] = []
    for device in DEVICES:
        for library in LIBRARIES:
            rows = rows_of(
                raw,
                device,
                "attention",
                library,
                "generation_attention_perf.parquet",
                window_size=0,
                head_dim=128,
            )
            rows = some(rows, rows["kernel_source"] == usual_kernel(rows))
            ratio, context = rows["num_heads"] / rows["num_key_value_heads"], rows["step"] + 1
            off = ~(
                np.isin(ratio, ROWS)
                & np.isin(rows["num_key_value_heads"], KEY_HEADS)
                & np.isin(rows["batch_size"], SEQUENCES)
            )
            inside = (
                (ratio <= ROWS[-1])
                & (ratio % 1 == 0)
                & (rows["num_key_value_heads"] <= KEY_HEADS[-1])
            )
            few = drawn(rows, off & inside & (context >= SHORTEST) & (context <= LONGEST))
            names = (
                "kv_cache_dtype",
                "num_heads",
                "num_key_value_heads",
                "batch_size",
                "step",
                "seconds",
            )
            decode += [
                [device, library, *line]
                for line in zip(*(few[name] for name in names), strict=True)
            ]
            for theirs in DENSE[library]:
                rows = rows_of(raw, device, "gemm", library, "gemm_perf.parquet", gemm_dtype=theirs)
                if not rows or not len(rows["seconds"]):
                    continue
                off = ~(np.isin(rows["m"], M) & np.isin(rows["n"], NK) & np.isin(rows["k"], NK)) & (
                    rows["m"] <= 64
                )
                few = drawn(rows, off & (rows["n"] >= 512) & (rows["k"] >= 512))
                formats = [one.value for one in FORMATS[theirs]]
                products += [
                    [device, library, *formats, *line]
                    for line in zip(*(few[n] for n in ("m", "n", "k", "seconds")), strict=True)
                ]
            rows = rows_of(
                raw,
                device,
                "moe",
                library,
                "moe_perf.parquet",
                moe_dtype="bfloat16",
                distribution="power_law_1.01",
            )
            few = drawn(
                rows, (rows["moe_ep_size"] <= 8) & (rows["topk"] > 1) & (rows["num_tokens"] <= 512)
            )
            names = (
                "num_tokens",
                "num_experts",
                "topk",
                "hidden_size",
                "inter_size",
                "moe_tp_size",
                "moe_ep_size",
                "seconds",
            )
            experts += [
                [device, library, *line]
                for line in zip(*(few[name] for name in names), strict=True)
            ]
    write(
        "decode",
        ["device", "library", "cache", "heads", "key_heads", "sequences", "step", "seconds"],
        decode,
    )
    write(
        "products",
        ["device", "library", "weights", "multiplied", "m", "n", "k", "seconds"],
        products,
    )
    write(
        "experts",
        [
            "device",
            "library",
            "tokens",
            "experts",
            "topk",
            "hidden",
            "width",
            "etp",
            "ep",
            "seconds",
        ],
        experts,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "systems" / "data")
