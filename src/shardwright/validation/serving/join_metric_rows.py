"""Tables with a row a metric, as collections of published serving runs have them: joined to a row a
configuration.

Their columns have other names, say several things in one cell (``P4/D8`` = degrees of prefill and
of decode workers), and leave some in the words of their notes: numbers of workers, and the degrees
of experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from shardwright.errors import DataError, nearest

METRIC: Final = "metric name"
_NEEDED: Final = ("source", "row", "model", "gpu", "framework+version", METRIC, "value")
_SAME: Final = ("source", "gpu", "precision", "workers", "spec_decoding", "duplicate_of", "notes")
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

NAMES: Final = [
    *(
        "source_id",
        "source",
        "table_or_row",
        "model_name",
        "gpu",
        "gpu_count",
        "engine",
        "replicas",
        "tp",
        "dpa",
        "ep",
        "pp",
        "workers",
    ),
    *(
        "degrees",
        "precision",
        "kv_precision",
        "isl",
        "osl",
        "concurrency",
        "protocol",
        "spec_decoding",
    ),
    *("tpot_ms", "ttft_ms", "output_tokens_per_s", "duplicate_of", "notes"),
]


def metric_rows(
    names: list[str], lines: Iterable[tuple[int, list[str]]], *, source: str
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """(names, (line, cells) of each configuration) of a table with a metric a line, in the columns
    of `ServingMeasurement`.

    Raises:
        DataError: a column is missing, or a line has more cells than the header.
    """
    missing = next((name for name in _NEEDED if name not in names), "")
    if missing:
        raise DataError(
            f"{source} line 1: no column {missing}",
            hint=nearest(missing, [n[:60] for n in names if n]),
        )
    joined: dict[tuple[str, ...], tuple[int, dict[str, str]]] = {}
    for line, cells in lines:
        if not any(cells):
            continue
        if len(cells) > len(names):
            raise DataError(
                f"{source} line {line}: {len(cells)} cells for {len(names)} columns",
                hint="is a comma not quoted?",
            )
        row = {
            **dict.fromkeys(names, ""),
            **{name: cell.strip() for name, cell in zip(names, cells, strict=False)},
        }
        _, made = joined.setdefault(
            (row["source"], row["row"], row.get("notes", "")), (line, _configuration(row))
        )
        metric = _METRICS.get(row.get(METRIC, ""), "")
        value = row.get("value", "")
        if metric:
            made[metric] = value
        elif (
            row.get(METRIC, "").endswith("_per_s_per_gpu")
            and _is_whole(row.get("gpus", ""))
            and _is_number(value)
        ):
            made.setdefault("output_tokens_per_s", f"{float(value) * int(row['gpus']):.6g}")
        else:
            made["notes"] = f"{made['notes']}; {row.get(METRIC, '')} {value}".strip("; ")
    return NAMES, iter(
        [(line, [made.get(name, "") for name in NAMES]) for line, made in joined.values()]
    )


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) is not None


def _configuration(row: Mapping[str, str]) -> dict[str, str]:
    """The cells of a configuration, without what was measured."""
    made = {name: row.get(name, "") for name in _SAME}
    made["source_id"] = next(
        (name for pattern, name in _SOURCES if pattern.search(row["source"])), row["source"]
    )
    made["table_or_row"], made["model_name"], made["engine"] = (
        row.get("row", ""),
        row.get("model", ""),
        row.get("framework+version", ""),
    )
    made["protocol"] = next(
        (name for words, name in _PROTOCOLS if row.get("protocol", "").startswith(words)),
        row.get("protocol", ""),
    )
    if row.get("batch_or_concurrency", "").startswith("max"):
        made["protocol"] = "maximum"
    for name, column in (
        ("isl", "isl"),
        ("osl", "osl"),
        ("concurrency", "batch_or_concurrency"),
        ("gpu_count", "gpus"),
    ):
        made[name] = row.get(column, "") if _is_whole(row.get(column, "")) else ""
    made["degrees"] = row.get("degrees", "")
    made["kv_precision"] = (
        "" if row.get("kv_precision", "") in _UNKNOWN else row.get("kv_precision", "")
    )
    made["precision"] = "" if row.get("precision", "") in _UNKNOWN else row.get("precision", "")
    made |= _degrees(row)
    made["notes"] = _shortened(row.get("notes", ""))
    return made


def _degrees(row: Mapping[str, str]) -> dict[str, str]:
    """tp, dpa, ep, pp of equal workers, or both pools in the words of `workers`."""
    notes, plain = (
        row.get("notes", ""),
        {name: row.get(name, "") for name in ("tp", "ep", "dp", "pp")},
    )
    pools = {
        name: (match[1], match[2])
        for name, cell in plain.items()
        if (match := _DUAL.fullmatch(cell))
    }
    if notes.startswith("disagg") or pools:
        made = dict.fromkeys(("tp", "dpa", "ep", "pp"), "")
        counts = _POOLS.search(notes)
        if not row.get("workers", "") and counts and "tp" in pools:
            made["workers"] = "+".join(_worker(counts[side + 1], pools, side) for side in (0, 1))
        return made
    attention = _ATTENTION.search(notes)
    tp = attention[1] if attention else plain["tp"]
    dpa = (attention[2] if attention else "") or (plain["dp"] if _is_whole(plain["dp"]) else "")
    if "attn DP" in plain["tp"]:
        tp = "1"
    return {
        "tp": tp if _is_whole(tp) else "",
        "dpa": dpa,
        "ep": plain["ep"] if _is_whole(plain["ep"]) and plain["ep"] != "0" else "",
        "pp": plain["pp"] if _is_whole(plain["pp"]) else "",
    }


def _worker(count: str, pools: Mapping[str, tuple[str, str]], side: int) -> str:
    """A pool in InferenceX's words; ranks with attention of their own are tp x dp devices, and said
    by ``dp``.
    """
    tp, ep = int(pools["tp"][side]), int(pools.get("ep", ("1", "1"))[side]) or 1
    dp = int(pools.get("dp", ("1", "1"))[side]) or 1
    return f"{count}x(tp{tp * dp}ep{ep}{'dp' if dp > 1 else ''})"


def _shortened(notes: str) -> str:
    """The day of the run, or the notes without what the cells say."""
    day = _RUN.search(notes)
    if day:
        return f"{day[1]}-{day[2]}-{day[3]}"
    return "" if notes.startswith(("agg;", "disagg;")) else notes
