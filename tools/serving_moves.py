"""Curves of engines' own sums in captured graphs, and of exchanges of tokens, inside an island."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from serving_rows import FOLDERS, LIBRARIES, Arrays, Columns, Line, newest, rows_of, some

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import algorithms_for
from shardwright.collectives.cheapest_algorithm import collective_seconds
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.inference.token_exchange import (
    TokenExchange,
    devices_reached,
    dispatch_and_combine_seconds,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import Network
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.default_nodes import default_node

SIZES = (2, 4, 8)
RINGS = 20
"""Multiprocessors that DeepEP's kernels for prompts are given (its default)."""
MICRO = 1e-6
ONE_SIDED = (4, 8, 16, 32)


def span_of_island(name: str, devices: int) -> Span:
    """So many devices of an island."""
    node = default_node(accelerator(name))
    link = node.scale_up
    one = np.ones(1)
    return Span(
        below=(np.array([devices]),),
        bandwidth=(one * link.achieved,),
        latency_s=(one * link.latency_s,),
        in_network_reduction=node.in_network_reduction,
    )


def move_entries(raw: Path, name: str) -> tuple[Arrays, list[Line]]:
    """Curves of collectives, with the formula's errors on all rows of each.

    A curve of reductions has exactly its rows; one of exchanges has rows of many hidden sizes.
    """
    node = default_node(accelerator(name))
    if node.scale_up.latency_s <= 0:
        return {}, []
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    lines: list[Line] = []
    for library in LIBRARIES:
        rows = rows_of(raw, name, "comm", library, "custom_allreduce_perf.parquet")
        for devices in SIZES if rows else ():
            here = (rows["num_gpus"] == devices) & ~np.char.endswith(
                rows["kernel_source"].astype(str), "eager"
            )
            if here.sum() < 8 or devices > node.island:
                continue
            _add(
                curves,
                f"{library}/all_reduce {devices}",
                rows["message_size"][here] * 2.0,
                rows["seconds"][here],
            )
        if any(key.startswith(f"{library}/") for key in curves):
            lines.append(_judge_sums(name, library, rows))
    lines += _deepep(raw, name, curves) + _one_sided(raw, name, curves)
    if not curves:
        return {}, []
    link = node.scale_up
    arrays = {
        "curve|names": np.frombuffer("\n".join(curves).encode(), dtype=np.uint8),
        "curve|lengths": np.array([len(volume) for volume, _ in curves.values()], np.int32),
        "curve|volume": np.concatenate([volume for volume, _ in curves.values()]).astype(
            np.float32
        ),
        "curve|seconds": np.concatenate([seconds for _, seconds in curves.values()]).astype(
            np.float32
        ),
        "curve|link": np.array(
            [link.achieved, link.latency_s, link.efficiency, node.in_network_reduction]
        ),
    }
    return arrays, lines


def _add(
    curves: dict[str, tuple[np.ndarray, np.ndarray]],
    key: str,
    volume: np.ndarray,
    seconds: np.ndarray,
) -> None:
    """Medians over half octaves of volume, made non-decreasing.

    A value is half-way between the running maximum and the minimum of the values that follow.
    """
    bins = np.round(np.log2(volume) * 2)
    places = np.unique(bins)
    level = np.array([np.median(np.log2(seconds[bins == b])) for b in places])
    size = np.array([np.median(volume[bins == b]) for b in places])
    low = np.minimum.accumulate(level[::-1])[::-1]
    curves[key] = (size, np.exp2((np.maximum.accumulate(level) + low) / 2))


def _judge_sums(name: str, library: str, rows: Columns) -> Line:
    """Errors of one-shot, two-shot and NCCL's algorithms on the rows up to 8 MiB.

    The curve has all of these rows, so it is not judged.
    """
    errors = []
    for devices in SIZES:
        here = (
            (rows["num_gpus"] == devices)
            & ~np.char.endswith(rows["kernel_source"].astype(str), "eager")
            & (rows["message_size"] <= 2**22)
        )
        if not here.any():
            continue
        volume = rows["message_size"][here] * 2.0
        span = span_of_island(name, devices)
        spent = [
            float(
                collective_seconds(
                    Collective.ALL_REDUCE,
                    volume=np.array([v]),
                    span=span,
                    algorithms=algorithms_for(Collective.ALL_REDUCE, library=library),
                )[0][0]
            )
            for v in volume
        ]
        errors.append(np.abs(np.array(spent) / rows["seconds"][here] - 1))
    return Line(
        name=name,
        what=f"all-reduce up to 8 MiB, {library}",
        formula=np.concatenate(errors),
        table=np.zeros(0),
    )


def _deepep(raw: Path, name: str, curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[Line]:
    lines = []
    devices = 4 if name.startswith("gb") else 8
    for exchange, file, unit in (
        (TokenExchange.LOW_LATENCY, "wideep_deepep_ll_perf.parquet", "avg_t_us"),
        (TokenExchange.NORMAL, "wideep_deepep_normal_perf.parquet", "transmit_us"),
    ):
        rows = _raw_columns(raw, name, file)
        if not rows:
            continue
        here = (rows["node_num"] == 1) & (rows["num_token"] <= 2**14)
        if "dispatch_sms" in rows:
            here &= rows["dispatch_sms"] == RINGS
        kept = some(rows, here)
        for way, element in (("dispatch", 1.0), ("combine", 2.0)):
            seconds = kept[f"{way}_{unit}"] * MICRO
            reached = (
                kept["num_topk"]
                if exchange is TokenExchange.LOW_LATENCY
                else devices_reached(np.float64(devices), kept["num_topk"])
            )
            volume = kept["num_token"] * kept["hidden_size"] * element * reached
            half = np.arange(len(volume)) % 2 == 0
            _add(curves, f"deepep/{exchange.value}-{way} {devices}", volume, seconds)
            trial: dict[str, tuple[np.ndarray, np.ndarray]] = {}
            _add(trial, "half", volume[half], seconds[half])
            at, level = trial["half"]
            table = np.exp2(np.interp(np.log2(volume[~half]), np.log2(at), np.log2(level)))
            plain = _exchange_formula(name, exchange, way, some(kept, ~half), element, devices)
            measured = seconds[~half]
            what = f"DeepEP, {exchange.value}, {way}, {devices} devices"
            lines.append(
                Line(
                    name=name,
                    what=what,
                    formula=np.abs(plain / measured - 1),
                    table=np.abs(table / measured - 1),
                )
            )
    return lines


def _raw_columns(raw: Path, name: str, file: str) -> Columns:
    """Rows whose times are not in a column of that name."""
    path = newest(raw / FOLDERS[name] / "comm" / "sglang", file)
    if path is None:
        return {}
    table = pq.read_table(path)
    return {
        column: table.column(column).to_numpy(zero_copy_only=False) for column in table.column_names
    }


def _exchange_formula(
    name: str, exchange: TokenExchange, way: str, rows: Columns, element: float, devices: int
) -> np.ndarray:
    network = Network(tiers=(), units=(), in_network_reduction=True)
    span = span_of_island(name, devices)
    spent = [
        dispatch_and_combine_seconds(
            exchange,
            tokens=np.array([tokens]),
            hidden=int(hidden),
            topk=int(topk),
            span=span,
            network=network,
            sent=element,
            returned=element,
        )[way == "combine"][0]
        for tokens, hidden, topk in zip(
            rows["num_token"], rows["hidden_size"], rows["num_topk"], strict=True
        )
    ]
    return np.array(spent)


def _one_sided(
    raw: Path, name: str, curves: dict[str, tuple[np.ndarray, np.ndarray]]
) -> list[Line]:
    """TensorRT-LLM's exchange over NVLink: NVFP4 there, 16 bits back."""
    rows = rows_of(
        raw, name, "comm", "trtllm", "trtllm_alltoall_perf.parquet", kernel_source="NVLinkOneSided"
    )
    lines: list[Line] = []
    if not rows:
        return lines
    for way, element in (("dispatch", 0.5625), ("combine", 2.0)):
        errors = []
        for devices in ONE_SIDED:
            here = (
                (rows["moe_ep_size"] == devices)
                & (rows["op_name"] == f"alltoall_{way}")
                & (rows["num_tokens"] <= 2**14)
            )
            if here.sum() < 8:
                continue
            kept = some(rows, here)
            reached = devices_reached(np.float64(devices), kept["topk"])
            _add(
                curves,
                f"one-sided/one-sided-{way} {devices}",
                kept["num_tokens"] * kept["hidden_size"] * element * reached,
                kept["seconds"],
            )
            renamed = {
                "num_token": kept["num_tokens"],
                "hidden_size": kept["hidden_size"],
                "num_topk": kept["topk"],
            }
            plain = _exchange_formula(name, TokenExchange.ONE_SIDED, way, renamed, element, devices)
            errors.append(np.abs(plain / kept["seconds"] - 1))
        if errors:
            lines.append(
                Line(
                    name=name,
                    what=f"one-sided exchange, {way}",
                    formula=np.concatenate(errors),
                    table=np.zeros(0),
                )
            )
    return lines
