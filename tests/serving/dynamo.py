"""Workloads for Dynamo's offline replay, and the same ones for ours, with one law of time.

The law is that of a Dynamo profile: an iteration takes what the new tokens of its prompts take,
plus what decoding takes at the sum of the contexts. Dynamo takes the mean of a batch's prompts,
rounded down, and does not count tokens of an answer that are computed anew; `law` does so too, so
that the comparison is of the schedulers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardwright.runtime.serving_engines.serving_engine import Batching
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings
from shardwright.serving.policy.scheduler_state import (
    BEFORE,
    DECODES,
    ENTRY,
    INPUTS,
    TOKENS,
    SchedulerState,
)
from shardwright.serving.traffic.requests_and_outcomes import Requests

PROMPT_TOKENS: Final = np.array([0.0, 500.0, 2000.0, 100_000.0])
PROMPT_MS: Final = np.array([0.0, 12.0, 40.0, 2500.0])
DECODE_MS: Final = (5.0, 2e-5)
"""At no context, and of a token of it."""

_BACKENDS = {Batching.MIXED: "vllm", Batching.PREFILL_FIRST: "sglang", Batching.IN_FLIGHT: "trtllm"}
_RUN = """
import json, os, sys
os.environ.setdefault("DYN_LOG", "error")
from dynamo.replay import run_trace_replay
found = []
for workload in json.load(sys.stdin):
    report = run_trace_replay(workload["trace"], capture_per_request=True, **workload["options"])
    rows = [(r["input_length"], r["output_length"], r["ttft_ms"], r["e2e_latency_ms"])\
 for r in report.per_request]
    found.append({"requests": rows, "seconds": report.summary["duration_ms"] / 1e3})
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests, and the scheduler and workers that serve them."""

    name: str
    requests: Requests
    scheduler: SchedulerSettings
    workers: int = 1
    waived: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Of a workload: seconds to the first token and of further ones, (n,) each, and of the whole
    run."""

    ttft: np.ndarray
    tpot: np.ndarray
    seconds: float


def interpreter() -> str:
    """A Python that has Dynamo: `SHARDWRIGHT_DYNAMO_PYTHON`, or this one; empty = there is none."""
    named = os.environ.get("SHARDWRIGHT_DYNAMO_PYTHON", "")
    return named or (sys.executable if find_spec("dynamo") else "")


def law(workers: int = 1) -> Callable[[SchedulerState, int, int], float]:
    """Seconds of an iteration."""

    def seconds(state: SchedulerState, rank: int, slot: int) -> float:
        entries = state.batch[rank, slot, : state.batch_size[rank, slot]]
        inputs = state.requests[entries[:, ENTRY], INPUTS]
        before = np.minimum(entries[:, BEFORE], inputs)
        after = np.minimum(entries[:, BEFORE] + entries[:, TOKENS], inputs)
        prompts = (after > before) & (entries[:, DECODES] == 0)
        count = int(prompts.sum())
        tokens = (
            count * (int(after[prompts].sum()) // count - int(before[prompts].sum()) // count)
            if count
            else 0
        )
        decoding = entries[:, DECODES] == 1
        milliseconds = float(np.interp(tokens, PROMPT_TOKENS, PROMPT_MS))
        if decoding.any():
            milliseconds += DECODE_MS[0] + DECODE_MS[1] * float(
                (entries[decoding, BEFORE] + 1).sum()
            )
        return milliseconds / 1e3

    return seconds


def replay(workloads: list[Workload], folder: Path) -> list[Replayed]:
    """What Dynamo says of them, in one process."""
    profile = folder / "profile.npz"
    contexts = np.array([0.0, 1e7])
    decode = np.repeat((DECODE_MS[0] + DECODE_MS[1] * contexts)[:, None], 2, axis=1)
    np.savez(
        profile,
        prefill_isl=PROMPT_TOKENS,
        prefill_ttft_ms=PROMPT_MS,
        decode_active_kv_tokens=contexts,
        decode_context_length=np.array([0.0, 1e5]),
        decode_itl=decode,
    )
    asked = [
        _asked(workload, folder / f"{i}.jsonl", profile) for i, workload in enumerate(workloads)
    ]
    ran = subprocess.run(
        [interpreter(), "-c", _RUN],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise AssertionError(ran.stderr[-2000:])
    return [_replayed(found) for found in json.loads(ran.stdout)]


def _asked(workload: Workload, path: Path, profile: Path) -> dict[str, Any]:
    _write(workload.requests, path)
    own, requests = workload.scheduler, workload.requests
    engine: dict[str, Any] = {
        "backend": _BACKENDS[own.batching],
        "worker_type": "aggregated",
        "num_gpu_blocks": own.blocks,
        "block_size": own.block_tokens,
        "max_num_seqs": own.max_sequences,
        "max_num_batched_tokens": own.token_budget,
        "enable_prefix_caching": own.prefix_cache,
        "enable_chunked_prefill": own.chunked_prefill,
        "timing_model": {
            "type": "external",
            "provider": "dynamo_profile",
            "config": {"path": str(profile)},
        },
    }
    if own.batching is Batching.PREFILL_FIRST:
        engine["sglang"] = {
            "schedule_policy": "fifo",
            "max_prefill_tokens": own.prompt_tokens,
            "chunked_prefill_size": own.token_budget,
        }
    options: dict[str, Any] = {
        "extra_engine_args": {"engine": engine | workload.extra},
        "trace_block_size": requests.block_tokens,
        "num_workers": workload.workers,
    }
    if requests.concurrency:
        options["replay_concurrency"] = requests.concurrency
    return {"trace": str(path), "options": options}


def _write(requests: Requests, path: Path) -> None:
    """In Mooncake's form; a block that is shared with nobody has a number of its own."""
    own = 10**9
    lines = []
    for i in range(len(requests.inputs)):
        count = -(-int(requests.inputs[i]) // requests.block_tokens)
        shared = requests.blocks[requests.block_offsets[i] : requests.block_offsets[i + 1]].tolist()
        rest = list(range(own, own + count - len(shared)))
        own += count
        row = {
            "timestamp": float(requests.arrival_s[i] * 1e3),
            "input_length": int(requests.inputs[i]),
            "output_length": int(requests.outputs[i]),
            "hash_ids": shared + rest,
        }
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")


def _replayed(found: dict[str, Any]) -> Replayed:
    rows = np.array(found["requests"], dtype=np.float64)
    many = rows[:, 1] > 1
    return Replayed(
        ttft=rows[:, 2] / 1e3,
        tpot=(rows[many, 3] - rows[many, 2]) / (rows[many, 1] - 1) / 1e3,
        seconds=float(found["seconds"]),
    )
