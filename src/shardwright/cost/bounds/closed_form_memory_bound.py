"""Lower bounds (B0) of the peak bytes on the examined ranks of a pipeline."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.compiled_bound_array_records import (
    SCHEDULE_1F1B,
    SCHEDULE_GPIPE,
    CostRecords,
    PatternRecords,
    Scratch,
)
from shardwright.cost.step.shared_scalar_cost_formulas import (
    gathered_elements,
    parameter_bytes,
    temporary_bytes,
)
from shardwright.kernel_compilation import inner


@inner
def _in_flight(schedule: int, ranks: int, chunks: int, rank: int, microbatches: int) -> float:
    """Peak (chunk, microbatch) pairs whose activations a rank holds: GPipe, 1F1B or interleaved."""
    if schedule == SCHEDULE_GPIPE:
        return float(microbatches * chunks)
    if schedule == SCHEDULE_1F1B:
        return float(min(microbatches, ranks - rank))
    return float(min(microbatches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1))


@inner
def fill_elements(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    p: int,
    h: int,
    schedule: int,
    microbatches: int,
) -> None:
    """Fill in the parameter elements and the chunks in flight of each examined rank."""
    pipeline = patterns.pipelines[p]
    for s in range(pipeline["looked"]):
        dense = 0.0
        experts = 0.0
        spread = 0.0
        frozen = 0.0
        frozen_dense = 0.0
        frozen_experts = 0.0
        copied = 0.0
        rank = patterns.ranks[p, s]["rank"]
        for t in range(costs.meshes.shape[1]):
            n = patterns.blocks[p, s, t]["stage"]
            if n > 0.0:
                block = costs.meshes[h, t]
                if rank > 0:
                    copied = max(copied, block["copied"])
                dense += n * block["dense"]
                experts += n * block["experts"]
                spread += n * block["spread"]
                frozen += n * block["frozen"]
                frozen_dense += n * block["frozen_dense"]
                frozen_experts += n * block["frozen_experts"]
        held = scratch.ranks[s]
        held["dense"] = dense
        held["experts"] = experts
        held["spread"] = spread
        held["frozen"] = frozen
        held["frozen_dense"] = frozen_dense
        held["frozen_experts"] = frozen_experts
        held["held_dense"] = dense + copied
        held["flying"] = _in_flight(
            schedule, pipeline["ranks"], pipeline["chunks_per_rank"], rank, microbatches
        )


@inner
def fill_live(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    facts: np.void,
    p: int,
    layer: int,
    h: int,
    r: int,
    mode: int,
    redo: int,
) -> None:
    """Fill in peak bytes of activations, logits, temporaries; `p`, `layer`, `h`, `r`: rows."""
    use = 1 if mode == 1 else 0
    for s in range(patterns.pipelines[p]["looked"]):
        saved = 0.0
        transient = 0.0
        end = 0.0
        for t in range(costs.meshes.shape[1]):
            block = patterns.blocks[p, s, t]
            is_layer = costs.layers[layer, t]["transient"] > 0.0
            kept = 2 if mode == 2 and is_layer and facts["layer_block"] < 0 else use
            saved += block["least"] * costs.saved[layer, t, kept]
            if block["stage"] > 0.0:
                end = max(end, costs.meshes[h, t]["table"])
            if is_layer and block["stage"] > 0.0:
                transient = max(transient, costs.saved[layer, t, 0] - costs.saved[layer, t, mode])
        if mode == 2 and facts["layer_block"] >= 0:
            t = facts["layer_block"]
            for way in range(patterns.redone.shape[3]):
                saved -= patterns.redone[p, s, redo, way]["least"] * (
                    costs.saved[layer, t, 0] - costs.saved[layer, t, 2]
                )
        rank, row = patterns.ranks[p, s], costs.rows[layer]
        logits = row["logits"] if rank["has_head"] else 0.0
        blocks = row["logits_blocks"] if rank["has_head"] else 0.0
        brief = temporary_bytes(transient, end, logits)
        scratch.redos[r, s]["live"] = scratch.ranks[s]["flying"] * saved + logits + brief
        scratch.redos[r, s]["blocks"] = blocks + transient + end - logits - brief


@inner
def fill_whole(
    scratch: Scratch, costs: CostRecords, patterns: PatternRecords, p: int, h: int
) -> None:
    """Fill in, by examined rank, ZeRO-3's largest gathered layer, and embedding and head elements.

    `largest`: for the work of the largest block. `ends`: for the whole step.
    """
    for s in range(patterns.pipelines[p]["looked"]):
        largest = 0.0
        ends = 0.0
        for t in range(costs.meshes.shape[1]):
            n = patterns.blocks[p, s, t]["stage"]
            if n > 0.0:
                largest = max(largest, costs.meshes[h, t]["unit"])
                ends += n * costs.meshes[h, t]["root"]
        scratch.ranks[s]["largest"] = largest
        scratch.ranks[s]["ends"] = ends


@inner
def fill_held(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    facts: np.void,
    p: int,
    h: int,
    zero: int,
    offloads: IntArray,
) -> None:
    """Fill in bytes that each examined rank keeps all step, by offload; `p`, `h`: table rows."""
    shard, expert_shard = costs.groups[h]["shard"], costs.groups[h]["expert_shard"]
    for s in range(patterns.pipelines[p]["looked"]):
        of = scratch.ranks[s]
        dense, experts = of["held_dense"], of["experts"]
        cut, cut_experts = np.ceil(dense / shard), np.ceil(experts / expert_shard)
        # Held by more devices than the rest, so sharded further: ZeRO-3 may leave nothing of it.
        frozen = of["frozen"] + of["spread"]
        if zero == 3:
            frozen = np.ceil(of["frozen_dense"] / shard) + np.ceil(
                of["frozen_experts"] / expert_shard
            )
        parameters = parameter_bytes(
            zero,
            dense + experts,
            cut + cut_experts,
            frozen,
            gathered_elements(of["ends"], of["largest"], facts["prefetch"]),
            facts["parameter_bytes"],
            facts["shard_bytes"],
            facts["frozen_shard_bytes"],
        )
        gradients = (cut + cut_experts if zero >= 2 else dense + experts) * facts["gradient_bytes"]
        gradients += (dense + experts) * facts["own_gradient_bytes"] if zero < 2 else 0.0
        states = (cut + cut_experts if zero >= 1 else dense + experts) * facts["state_bytes"]
        leave = zero >= 2 and facts["gradients_leave"]
        for o in range(offloads.shape[0]):
            here = (100.0 - float(offloads[o])) / 100.0
            kept = np.floor(gradients * here) if leave else gradients
            scratch.held[o, s] = (
                parameters
                + kept
                + np.floor(states * (100.0 - float(offloads[o])) / 100.0)
                + facts["workspace"]
            )
