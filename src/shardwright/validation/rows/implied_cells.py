"""What the cells of a row imply of those that are empty: its model, vocabulary, degrees and
microbatch, each told as an assumption.

A cell is filled only where the others leave one value: never from what is usual, but for a
runtime's documented defaults.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any, Final

from shardwright.runtime.megatron_arguments import MODULES
from shardwright.validation.rows.model_names import meant
from shardwright.validation.tables.measured_rows import Measurement

QUANTUM: Final = 128
_LISTED: Final = re.compile(r"(?:selective)?[\s\[\"']*([a-z_, +]*?)[\s\]\"']*")
"""Modules in any brackets: ``selective[mlp+moe_act]``, ``["mlp" "moe_act"]``, ``core_attn,mlp``."""
_WHOLE: Final = ("zero-3", "zero3", "stage 3", "stage-3", "stage3", "fsdp")
"""Words of sharding that need no other degree."""


def implied(row: Measurement, *, assumptions: list[str]) -> Measurement:
    """`row` with the cells that its others imply; `assumptions` gets a line for each."""
    for fill in (_batch, _model, _degrees, _chunks, _microbatch, _vocabulary):
        given, why = fill(row)
        if given:
            row = replace(row, **given)
            words = ", ".join(f"{column} {value}" for column, value in given.items())
            assumptions.append(f"{words}: {why}")
    return row


def _batch(row: Measurement) -> tuple[dict[str, Any], str]:
    """Samples a step where tokens are said, if these are whole sequences."""
    if (
        row.global_batch
        or not (row.global_batch_tokens and row.seq_len)
        or row.global_batch_tokens % row.seq_len
    ):
        return {}, ""
    return {
        "global_batch": row.global_batch_tokens // row.seq_len
    }, f"{row.global_batch_tokens} tokens of {row.seq_len}"


def _model(row: Measurement) -> tuple[dict[str, Any], str]:
    name, why = meant(row)
    return ({"architecture": name} if name else {}), why


def _degrees(row: Measurement) -> tuple[dict[str, Any], str]:
    """tp and pp: 1 where the other degrees are as many as the devices, or where parameters are
    sharded over all of them.
    """
    empty = [name for name in ("tp", "pp") if not getattr(row, name)]
    if not empty or not row.gpu_count:
        return {}, ""
    if (
        row.dp
        and prod(getattr(row, name) or 1 for name in ("tp", "cp", "pp", "dp")) == row.gpu_count
    ):
        return dict.fromkeys(empty, 1), "the other degrees are all devices"
    if (
        row.dp is None
        and len(empty) == 2
        and any(word in row.zero_stage_or_fsdp.lower() for word in _WHOLE)
    ):
        return dict.fromkeys(empty, 1), f"{row.zero_stage_or_fsdp} and no other degree is said"
    return {}, ""


def _chunks(row: Measurement) -> tuple[dict[str, Any], str]:
    """One chunk a rank without a pipeline: there is nothing to interleave."""
    return (
        ({"vpp": 1}, f"pp 1 has nothing that {row.vpp} chunks interleave")
        if row.pp == 1 and (row.vpp or 1) > 1
        else ({}, "")
    )


def _microbatch(row: Measurement) -> tuple[dict[str, Any], str]:
    """Samples of a microbatch by how many a replica has in a step, where that leaves one value."""
    if row.micro_batch or not (row.global_batch and row.gpu_count and row.tp and row.pp):
        return {}, ""
    replicas = row.dp or row.gpu_count // (row.tp * row.pp * (row.cp or 1))
    samples, left = divmod(row.global_batch, max(1, replicas))
    if left or not samples:
        return {}, ""
    if samples == 1:
        return {"micro_batch": 1}, "a replica has one sample a step"
    if row.gradient_accumulation and samples % row.gradient_accumulation == 0:
        return {
            "micro_batch": samples // row.gradient_accumulation
        }, "global batch over replicas and microbatches"
    return {}, ""


def _vocabulary(row: Measurement) -> tuple[dict[str, Any], str]:
    """Rows of the embedding where the source gives the tokenizer's words: Megatron's padding, to a
    multiple of 128 x tp.
    """
    if row.vocab or not row.tokenizer_words:
        return {}, ""
    quantum = QUANTUM * (row.tp or 1)
    return {
        "vocab": -(-row.tokenizer_words // quantum) * quantum
    }, f"{row.tokenizer_words} words padded to a multiple of {quantum}"


def modules_of(row: Measurement) -> tuple[Measurement, tuple[str, ...]]:
    """The row with what the grid says of its recompute, and the options that are on, where it lists
    Megatron-Core's modules: ``selective[core_attn+moe_act]``. A module that is not known stays, and
    makes the row unusable.
    """
    found = _LISTED.fullmatch(row.recompute.lower().strip())
    if found is None:
        return row, ()
    words = [word for word in re.split(r"[+, ]+", found[1]) if word]
    if not words or any(word not in (*MODULES, "core_attn") for word in words):
        return row, ()
    kept = "selective" if "core_attn" in words else "none"
    return replace(row, recompute=kept), tuple(
        MODULES[word] for word in words if word != "core_attn"
    )
