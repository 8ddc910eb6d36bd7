"""Fill empty cells of a row that its other cells imply: model, vocabulary, degrees and microbatch.

A cell is filled only where the others leave one value, and each is listed as an assumption.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any, Final

from shardwright.runtime.parallelism_recompute_precision_from_megatron_arguments import MODULES
from shardwright.validation.training.model_of_row_name import implied_model
from shardwright.validation.training.training_table_columns import TrainingMeasurement

QUANTUM: Final = 128
"""Megatron pads the vocabulary to a multiple of this times the tensor parallel degree."""
Filled = tuple[dict[str, Any], str]
"""(column -> value of implied cells, reason)."""
_NOTHING: Final[Filled] = ({}, "")
_LISTED: Final = re.compile(r"(?:selective)?[\s\[\"']*([a-z_, +]*?)[\s\]\"']*")
"""A list of modules in any brackets: ``selective[mlp+moe_act]``, ``["mlp" "moe_act"]``."""
_SHARDED: Final = ("zero-3", "zero3", "stage 3", "stage-3", "stage3", "fsdp")
"""Spellings of sharding over all devices, which needs no other degree."""


def with_implied_cells(row: TrainingMeasurement, *, assumptions: list[str]) -> TrainingMeasurement:
    """Fill empty cells that other cells imply, one rule after another; note each assumption."""
    for fill in (
        _implied_batch,
        implied_model,
        _implied_degrees,
        _implied_chunks,
        _implied_microbatch,
        _implied_vocabulary,
    ):
        cells, reason = fill(row)
        if cells:
            row = replace(row, **cells)
            texts = ", ".join(f"{column} {value}" for column, value in cells.items())
            assumptions.append(f"{texts}: {reason}")
    return row


def _implied_batch(row: TrainingMeasurement) -> Filled:
    """({`global_batch`}, reason): tokens a step over tokens a sequence, if whole; else nothing."""
    tokens = row.global_batch_tokens
    if row.global_batch or not (tokens and row.seq_len) or tokens % row.seq_len:
        return _NOTHING
    return {"global_batch": tokens // row.seq_len}, f"{tokens} tokens of {row.seq_len}"


def _implied_degrees(row: TrainingMeasurement) -> Filled:
    """({`tp`, `pp`} = 1, reason) if the other degrees use all devices, or states are sharded."""
    empty = [name for name in ("tp", "pp") if not getattr(row, name)]
    if not empty or not row.gpu_count:
        return _NOTHING
    degrees = prod(getattr(row, name) or 1 for name in ("tp", "cp", "pp", "dp"))
    if row.dp and degrees == row.gpu_count:
        return dict.fromkeys(empty, 1), "the other degrees are all devices"
    sharded = any(word in row.zero_stage_or_fsdp.lower() for word in _SHARDED)
    if row.dp is None and len(empty) == 2 and sharded:
        return dict.fromkeys(empty, 1), f"{row.zero_stage_or_fsdp} and no other degree is said"
    return _NOTHING


def _implied_chunks(row: TrainingMeasurement) -> Filled:
    """({`vpp`} = 1, reason) for a row with `vpp` above 1 but pp 1, so nothing is interleaved."""
    if row.pp != 1 or (row.vpp or 1) == 1:
        return _NOTHING
    return {"vpp": 1}, f"pp 1 has nothing that {row.vpp} chunks interleave"


def _implied_microbatch(row: TrainingMeasurement) -> Filled:
    """({`micro_batch`}, reason): samples a replica over accumulation steps, or 1 for one sample."""
    if row.micro_batch or not (row.global_batch and row.gpu_count and row.tp and row.pp):
        return _NOTHING
    replicas = row.dp or row.gpu_count // (row.tp * row.pp * (row.cp or 1))
    samples, left = divmod(row.global_batch, max(1, replicas))
    if left or not samples:
        return _NOTHING
    if samples == 1:
        return {"micro_batch": 1}, "a replica has one sample a step"
    steps = row.gradient_accumulation
    if not steps or samples % steps:
        return _NOTHING
    return {"micro_batch": samples // steps}, "global batch over replicas and microbatches"


def _implied_vocabulary(row: TrainingMeasurement) -> Filled:
    """({`vocab`}, reason): tokenizer's words with Megatron's padding, if the cell is empty."""
    if row.vocab or not row.tokenizer_words:
        return _NOTHING
    quantum = QUANTUM * (row.tp or 1)
    reason = f"{row.tokenizer_words} words padded to a multiple of {quantum}"
    return {"vocab": padded(row.tokenizer_words, quantum)}, reason


def padded(words: int, quantum: int) -> int:
    """Round `words` embedding rows up to a multiple of `quantum`."""
    return -(-words // quantum) * quantum


def recomputed_modules(row: TrainingMeasurement) -> tuple[TrainingMeasurement, tuple[str, ...]]:
    """(row with mode selective or none, option names without value) for a list of Megatron modules.

    Only a cell that lists Megatron-Core's modules is changed: ``selective[core_attn+moe_act]``. A
    list with an unknown module stays as it is, and makes the row unusable.
    """
    match = _LISTED.fullmatch(row.recompute.lower().strip())
    modules = [module for module in re.split(r"[+, ]+", match[1]) if module] if match else []
    if not modules or any(module not in (*MODULES, "core_attn") for module in modules):
        return row, ()
    mode = "selective" if "core_attn" in modules else "none"
    options = tuple(MODULES[module] for module in modules if module != "core_attn")
    return replace(row, recompute=mode), options
