"""Columns of the empty table of served configurations, with two complete rows."""

from __future__ import annotations

from typing import Final

from shardwright.validation.tables.table_template import (
    CONFIG_COLUMN,
    GPU_MEANING,
    MODEL_MEANING,
    SOURCE_COLUMNS,
    TemplateColumn,
)

COLUMNS: Final[tuple[TemplateColumn, ...]] = (
    *SOURCE_COLUMNS,
    ("model_name", MODEL_MEANING, ("llama-3.3-70b", "deepseek-r1")),
    CONFIG_COLUMN,
    ("gpu", GPU_MEANING, ("NVIDIA H200", "B200")),
    ("gpu_count", "devices of all workers; empty = what the degrees say", ("4", "")),
    ("engine", "vLLM, SGLang or TensorRT-LLM and its version", ("vLLM 0.12.0", "SGLang 0.5.9")),
    (
        "options",
        "what its launch set, as `shardwright catalog engines` calls it",
        ("token_budget=16384", "kv=fp8"),
    ),
    (
        "deployment",
        "workers in the notation of serve-simulate; or tp, dpa, ep, pp",
        ("", "prefill 1x(tp8) decode 2x(dpa8 ep8)"),
    ),
    ("tp", "tensor parallel degree of attention", ("4", "")),
    ("dpa", "ranks with attention of their own (attention DP); empty = 1", ("", "")),
    ("ep", "devices that experts are spread over; empty = 1", ("", "")),
    ("pp", "pipeline stages; empty = 1", ("", "")),
    ("precision", "of the checkpoint: bf16, fp8, fp4, int4", ("fp8", "fp8")),
    ("checkpoint", "its published name, where several are of that precision", ("", "")),
    ("kv_precision", "of the cache; empty = as the engine and the checkpoint say", ("fp8", "")),
    ("isl", "tokens of a prompt; the longest where they differ", ("1024", "8192")),
    ("osl", "tokens of an answer; the longest where they differ", ("1024", "1024")),
    (
        "shortest",
        "the shortest over the longest, lengths between them as likely; empty = 1",
        ("0.8", ""),
    ),
    ("concurrency", "requests in flight; or request_rate", ("64", "256")),
    ("request_rate", "arrivals a second, independent of one another", ("", "")),
    ("requests", "of the run; empty = ten for each in flight", ("640", "")),
    ("guesses", "tokens guessed ahead (MTP); empty = none", ("", "")),
    ("acceptance", "share of guesses that are right, given that those before them are", ("", "")),
    ("tpot_ms", "milliseconds a token behind the first, the mean of requests", ("17.5", "21")),
    ("ttft_ms", "milliseconds to the first token, the mean of the run", ("300", "1800")),
    ("output_tokens_per_s", "of all workers", ("3500", "")),
    ("notes", "free; LOW QUALITY = leave out", ("", "")),
)
