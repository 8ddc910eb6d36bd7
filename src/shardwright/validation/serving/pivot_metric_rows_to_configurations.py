"""Join serving tables with one metric a row into tables with one configuration a row.

Collections of published serving runs have such tables.

Their columns have other names. One cell may have two values (``P4/D8`` = degrees of prefill and of
decode workers), and numbers of workers and degrees of experts may be in the notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shardwright.errors import DataError, nearest
from shardwright.validation.tables.csv_rows import Lines

METRIC: Final = "metric name"
_NEEDED: Final = ("source", "row", "model", "gpu", "framework+version", METRIC, "value")
_OPTIONAL: Final = (
    *("batch_or_concurrency", "degrees", "dp", "duplicate_of", "ep", "gpus", "isl", "kv_precision"),
    *("notes", "osl", "pp", "precision", "protocol", "spec_decoding", "tp", "workers"),
)
_SAME: Final = ("source", "gpu", "workers", "degrees", "spec_decoding", "duplicate_of")
_METRICS: Final = {
    "tpot_ms": "tpot_ms",
    "ttft_ms": "ttft_ms",
    "output_tokens_per_s_total": "output_tokens_per_s",
}
_SOURCES: Final = (
    (re.compile(r"silicon_sample"), "silicon"),
    (re.compile(r"perf-overview"), "trtllm-overview"),
    (re.compile(r"Best_perf_practice"), "trtllm-r1"),
    (re.compile(r"tech_blog|/blogs/"), "trtllm-blogs"),
    (re.compile(r"splitwise"), "splitwise"),
    (re.compile(r"MLPerf"), "mlperf"),
    (re.compile(r"Pope"), "palm"),
    (re.compile(r"open-infra-index"), "deepseek"),
    (re.compile(r"lm-sys"), "lmsys"),
)
_PROTOCOLS: Final = (("InferenceX", "inferencex"), ("fixed", "fixed"))
_ATTENTION: Final = re.compile(r"attn tp([0-9]{1,6}) dp([0-9]{0,6})")
_POOLS: Final = re.compile(r"prefill workers=([0-9]{1,6})\b.*decode workers=([0-9]{1,6})\b")
_RUN: Final = re.compile(r"\b(20[0-9]{2})_([0-9]{2})_([0-9]{2})_")
_UNKNOWN: Final = (
    "",
    "not stated",
    "not recorded",
    "not stated per row",
    "n/a",
    "unknown",
    "gemm:nan",
)
_DUAL: Final = re.compile(r"P([0-9]{1,6})/D([0-9]{1,6})")

_COPIED: Final = ("isl", "osl", "concurrency", "gpu_count")
_COLUMN_OF: Final = {"concurrency": "batch_or_concurrency", "gpu_count": "gpus"}


def join_metric_rows(names: list[str], lines: Lines, source: str) -> tuple[list[str], Lines]:
    """Join rows of one metric each into a line a configuration: (columns, lines); others unchanged.

    The columns are those of `ServingMeasurement`.

    A table without the column of metrics is returned as it is.

    Args:
        source: name of the table in errors.

    Raises:
        DataError: a column is missing, or a line has more cells than the header.
    """
    if METRIC not in names:
        return names, lines
    missing = next((name for name in _NEEDED if name not in names), "")
    if missing:
        raise DataError(
            f"{source} line 1: no column {missing}",
            hint=nearest(missing, [name[:60] for name in names if name]),
        )
    joined: dict[tuple[str, str, str], tuple[int, dict[str, str]]] = {}
    for line, cells in lines:
        if not any(cells):
            continue
        if len(cells) > len(names):
            raise DataError(
                f"{source} line {line}: {len(cells)} cells for {len(names)} columns",
                hint="is a comma not quoted?",
            )
        row = dict.fromkeys((*_NEEDED, *_OPTIONAL, *names), "")
        row |= {name: cell.strip() for name, cell in zip(names, cells, strict=False)}
        key = (row["source"], row["row"], row["notes"])
        if key not in joined:
            joined[key] = line, _configuration_cells(row)
        _add_metric(joined[key][1], row)
    columns = [*dict.fromkeys(column for _, cells in joined.values() for column in cells)]
    for column in ("source_id", "table_or_row", "model_name", "gpu", "engine"):
        if column not in columns:
            columns.append(column)
    return columns, [
        (line, [cells.get(column, "") for column in columns]) for line, cells in joined.values()
    ]


def _add_metric(cells: dict[str, str], row: Mapping[str, str]) -> None:
    """Set a row's metric in its configuration's cells, per-GPU rates x GPUs; others in notes."""
    metric, value, devices = row[METRIC], row["value"], row["gpus"]
    if metric in _METRICS:
        cells[_METRICS[metric]] = value
    elif metric.endswith("_per_s_per_gpu") and _is_whole(devices) and _is_number(value):
        cells.setdefault("output_tokens_per_s", f"{float(value) * int(devices):.6g}")
    else:
        cells["notes"] = f"{cells['notes']}; {metric} {value}".strip("; ")


def _is_whole(text: str) -> bool:
    """True if the text is a whole number of at most 9 digits."""
    return text.isascii() and text.isdigit() and len(text) <= 9


def _is_number(text: str) -> bool:
    """True if the text is a decimal number."""
    return re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) is not None


def _configuration_cells(row: Mapping[str, str]) -> dict[str, str]:
    """Cells of the row's configuration under the columns of `ServingMeasurement`, no metrics."""
    protocol = row["protocol"]
    if row["batch_or_concurrency"].startswith("max"):
        protocol = "maximum"
    else:
        protocol = next((to for start, to in _PROTOCOLS if protocol.startswith(start)), protocol)
    source = row["source"]
    counts = {name: row[_COLUMN_OF.get(name, name)] for name in _COPIED}
    formats = {name: row[name] for name in ("precision", "kv_precision")}
    return {
        **{name: row[name] for name in _SAME},
        "source_id": next((name for pattern, name in _SOURCES if pattern.search(source)), source),
        "table_or_row": row["row"],
        "model_name": row["model"],
        "engine": row["framework+version"],
        "protocol": protocol,
        **{name: cell if _is_whole(cell) else "" for name, cell in counts.items()},
        **{name: "" if cell in _UNKNOWN else cell for name, cell in formats.items()},
        **_degree_cells(row),
        "notes": _shortened_notes(row["notes"]),
    }


def _degree_cells(row: Mapping[str, str]) -> dict[str, str]:
    """Cells tp, dpa, ep, pp of equal workers, or `workers` of two pools; {} if they are unclear."""
    notes = row["notes"]
    printed = {name: row[name] for name in ("tp", "ep", "dp", "pp")}
    pools = {
        name: (match[1], match[2])
        for name, cell in printed.items()
        if (match := _DUAL.fullmatch(cell))
    }
    if notes.startswith("disagg") or pools:
        counts = _POOLS.search(notes)
        if row["workers"] or not counts or "tp" not in pools:
            return {}
        return {"workers": "+".join(_pool_text(counts[side + 1], pools, side) for side in (0, 1))}
    degrees = {name: cell if _is_whole(cell) else "" for name, cell in printed.items()}
    attention = _ATTENTION.search(notes)
    tp = attention[1] if attention else degrees["tp"]
    return {
        "tp": "1" if "attn DP" in printed["tp"] else tp,
        "dpa": (attention[2] if attention else "") or degrees["dp"],
        "ep": "" if degrees["ep"] == "0" else degrees["ep"],
        "pp": degrees["pp"],
    }


def _pool_text(count: str, pools: Mapping[str, tuple[str, str]], side: int) -> str:
    """Text ``2x(tp8ep8dp)`` of the prefill (`side` 0) or decode (1) pool; tp: devices a worker.

    ``dp`` is data parallel attention, over tp x dp devices.
    """
    tp, ep = int(pools["tp"][side]), int(pools.get("ep", ("1", "1"))[side]) or 1
    dp = int(pools.get("dp", ("1", "1"))[side]) or 1
    return f"{count}x(tp{tp * dp}ep{ep}{'dp' if dp > 1 else ''})"


def _shortened_notes(notes: str) -> str:
    """Date of the run if the notes have one, else the notes unless they only repeat cells."""
    day = _RUN.search(notes)
    if day:
        return f"{day[1]}-{day[2]}-{day[3]}"
    return "" if notes.startswith(("agg;", "disagg;")) else notes
