"""Rules of a legal grid: predicates on a grid, a model, a batch and a number of devices.

Each predicate reads whole numbers or columns of numbers. It rejects one grid, and the search
applies it to the columns of many grids.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from shardwright.errors import nearest
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.parallelism_grid import FIELD_RULES
from shardwright.strategy.rule_violations import GridRule

SCHEDULES: Final[Mapping[str, bool]] = MappingProxyType(
    {"gpipe": False, "1f1b": False, "interleaved-1f1b": True}
)
"""Schedules that grids are searched and lowered with directly -> they need several chunks a device
(vpp > 1)."""


LoneStages: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFacts:
    """Sizes of the model, batch and cluster, and limits of the runtime, for the rules of a grid.

    Args:
        devices: devices of the cluster; a plan may leave some idle.
        global_batch: samples a step.
        seq_len: tokens a sample.
        layers: blocks between embedding and head.
        vocab: rows of the embedding.
        heads, kv_heads: heads of attention (the greatest common divisor if layers differ; 0 = no
            attention).
        ffn: width of the dense and shared feed-forward (greatest common divisor; 0 = none).
        experts: experts of a layer (greatest common divisor; 0 = dense model).
        expert_ffn: width of one expert.
        scan_heads: heads of linear recurrences (greatest common divisor; 0 = none).
        causal: no position reads a later one or another sequence.
        teacher: layers of a teacher beside the model (0 = none).
        fills_pipeline, ties_experts, equal_stages, equal_between: fields of `Runtime`.
        lone_stages: (ZeRO stage, equivalent stage) of the stages that have an effect where one
            device holds all parameters, because some states are kept in host memory
            (`model_and_batch_sizes_for_grid_rules.lone_stages`).
    """

    devices: int
    global_batch: int
    seq_len: int
    layers: int
    vocab: int = 0
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    experts: int = 0
    expert_ffn: int = 0
    scan_heads: int = 0
    causal: bool = True
    teacher: int = 0
    fills_pipeline: bool = False
    ties_experts: bool = False
    equal_stages: bool = False
    equal_between: bool = False
    lone_stages: LoneStages = ()


MAX_STAGE: Final = 3
"""The ZeRO stage that shards everything."""
HOST_SHARDS: Final = ("param_offload", "on")
"""The option that keeps ZeRO-3's shards in host memory; with it ZeRO-3 has an effect on one device
too."""


_COMMON: Final = (
    *FIELD_RULES,
    GridRule(
        rule="grid.devices",
        holds=lambda g, f: g.tp * g.cp * g.dp * g.pp <= f.devices,
        message=lambda g, f: (
            f"tp x cp x dp x pp = {g.tp} x {g.cp} x {g.dp} x {g.pp} = {g.devices}, more than the"
            f" {f.devices} devices"
        ),
        hint="ep folds over tp x cp x dp and does not count",
    ),
    GridRule(
        rule="grid.batch",
        holds=lambda g, f: f.global_batch % (g.dp * g.microbatch) == 0,
        message=lambda g, f: (
            f"global batch {f.global_batch} does not divide by dp x mbs = {g.dp} x {g.microbatch}"
        ),
        hint="every replica takes a whole number of microbatches",
    ),
    GridRule(
        rule="grid.heads",
        holds=lambda g, f: (
            (f.heads % (g.tp * g.ulysses) == 0)
            & ((f.kv_heads % (g.tp * g.ulysses) == 0) | (g.tp * g.ulysses % (f.kv_heads or 1) == 0))
        ),
        message=lambda g, f: (
            f"{f.heads} heads ({f.kv_heads} of keys) do not divide over tp x ulysses = {g.tp} x"
            f" {g.ulysses}"
        ),
        hint="tp x ulysses divides the heads, and the key heads divide it or are divided by it",
    ),
    GridRule(
        rule="grid.heads",
        holds=lambda g, f: f.scan_heads % g.tp == 0,
        message=lambda g, f: f"{f.scan_heads} recurrence heads do not divide by tp {g.tp}",
        hint="tp divides the heads",
    ),
    GridRule(
        rule="grid.ffn",
        holds=lambda g, f: f.ffn % g.tp == 0,
        message=lambda g, f: f"feed-forward width {f.ffn} does not divide by tp {g.tp}",
        hint="tp divides it",
    ),
    GridRule(
        rule="grid.sequence",
        # A ring has cp / ulysses parts: the length divides by twice as many where `length x
        # ulysses` does by 2 cp.
        holds=lambda g, f: (
            (f.seq_len % (g.cp * (1 + g.sp * (g.tp - 1))) == 0)
            & ((g.cp == g.ulysses) | (f.seq_len * g.ulysses % (2 * g.cp) == 0))
        ),
        message=lambda g, f: (
            f"{f.seq_len} tokens do not divide by {g.cp} x {g.tp if g.sp else 1} (cp x tp with sp)"
            f" and 2 x ring {g.ring}"
        ),
        hint=(
            "causal ring parts are dealt in pairs, so twice the ring degree must divide the length"
        ),
    ),
    GridRule(
        rule="grid.sp",
        holds=lambda g, f: (g.sp == 0) | (g.tp > 1),
        message=lambda g, f: "sp without tp",
        hint="sequence parallelism splits the stream over the tp group: drop sp",
    ),
    GridRule(
        rule="grid.experts",
        holds=lambda g, f: (g.ep * g.etp == 1) | (f.experts > 0),
        message=lambda g, f: f"ep {g.ep} etp {g.etp} on a model without experts",
        hint="drop ep and etp",
    ),
    GridRule(
        rule="grid.experts",
        holds=lambda g, f: (f.experts % g.ep == 0) & (f.expert_ffn % g.etp == 0),
        message=lambda g, f: (
            f"{f.experts} experts of width {f.expert_ffn} do not divide by ep {g.ep} and etp"
            f" {g.etp}"
        ),
        hint="ep divides the experts, etp their width",
        after="grid.experts",
    ),
    GridRule(
        rule="grid.experts",
        holds=lambda g, f: g.tp * g.cp * g.dp % (g.ep * g.etp) == 0,
        message=lambda g, f: (
            f"edp = tp x cp x dp / (ep x etp) = {g.tp} x {g.cp} x {g.dp} / ({g.ep} x {g.etp}) ="
            f" {g.tp * g.cp * g.dp / (g.ep * g.etp):.4g}"
        ),
        hint="edp must be whole: ep x etp divides the devices of a pipeline stage",
        after="grid.experts",
    ),
    GridRule(
        rule="grid.experts",
        holds=lambda g, f: g.folds,
        message=lambda g, f: (
            f"edp {g.edp} x ep {g.ep} x etp {g.etp} does not line up with tp, cp, dp in order"
            f" {'-'.join(g.order)}"
        ),
        hint="going outwards, the products of both meshes must divide one another",
        after="grid.experts",
    ),
    GridRule(
        rule="grid.experts",
        holds=lambda g, f: (g.ep * g.etp == 1) | (g.tp == 1) | (g.sp == 1),
        message=lambda g, f: f"{'ep' if g.ep > 1 else 'etp'} with tp needs sp",
        hint=(
            "else each member of a tp group has every token, and experts are cut like the MLP by"
            " tp: add sp"
        ),
    ),
    GridRule(
        rule="grid.layers",
        holds=lambda g, f: g.largest >= 0,
        message=lambda g, f: g.chunks.message.removesuffix(" [grid.layers]"),
        hint=lambda g: g.chunks.hint,
    ),
    GridRule(
        rule="runtime.layers",
        holds=lambda g, f: (
            (g.unlike <= 1 - f.equal_stages) | (not (f.equal_stages | f.equal_between))
        ),
        message=lambda g, f: (
            f"chunks of {', '.join(map(str, g.chunks))[:60]} layers, which the runtime has no"
            " argument for"
        ),
        hint=lambda g: (
            "layers that divide by pp x vpp, first= and last=, or a runtime with a layout:"
            " megatron-core-0.12"
        ),
        after="grid.layers",
    ),
    GridRule(
        rule="runtime.experts",
        holds=lambda g, f: (not f.ties_experts) | (f.experts == 0) | (g.etp == g.tp),
        message=lambda g, f: (
            f"etp {g.etp} with tp {g.tp}: the runtime cuts experts as it cuts layers"
        ),
        hint="etp as tp",
        after="grid.experts",
    ),
    GridRule(
        rule="grid.teacher",
        holds=lambda g, f: (f.teacher == 0) | ((g.vpp == 1) & (g.pp <= f.teacher + 2)),
        message=lambda g, f: f"pp {g.pp} vpp {g.vpp} with a teacher of {f.teacher} layers",
        hint=(
            "every stage runs a part of the teacher too, in one chunk: vpp 1, and pp at most its"
            " layers + 2"
        ),
    ),
    GridRule(
        rule="grid.recompute",
        holds=lambda g, f: g.recompute_layers <= g.largest + (g.largest < 0) * (f.layers + 1),
        message=lambda g, f: (
            f"recompute=full:{g.recompute_layers}, but the largest chunk has"
            f" {f.layers if g.largest < 0 else g.largest} layers"
        ),
        hint="recompute=full recomputes them all",
    ),
    GridRule(
        rule="grid.host",
        holds=lambda g, f: g.host <= g.largest + (g.largest < 0) * (f.layers + 1),
        message=lambda g, f: (
            f"host={g.host}, but the largest chunk has {f.layers if g.largest < 0 else g.largest}"
            " layers"
        ),
        hint="at most the layers of a chunk",
    ),
    GridRule(
        rule="grid.slices",
        holds=lambda g, f: g.slices <= f.seq_len,
        message=lambda g, f: f"{g.slices} slices of {f.seq_len} tokens",
        hint="a slice is a token or more",
    ),
    GridRule(
        rule="grid.slices",
        holds=lambda g, f: (g.slices == 1) | f.causal,
        message=lambda g, f: (
            f"{g.slices} slices of a model whose positions read later ones or another sequence"
        ),
        hint="token slices are for causal models: drop the slices",
    ),
)
_SEARCHED: Final = (
    GridRule(
        rule="grid.schedule",
        holds=lambda g, f: g.searched,
        message=lambda g, f: f"unknown schedule {g.schedule!r}",
        hint=lambda g: nearest(g.schedule, SCHEDULES),
    ),
    GridRule(
        rule="grid.slices",
        holds=lambda g, f: g.slices == 1,
        message=lambda g, f: f"slices with schedule {g.schedule}",
        hint="terapipe and seq-1f1b order slices",
        after="grid.schedule",
    ),
    GridRule(
        rule="grid.vpp",
        holds=lambda g, f: ((g.vpp > 1) == g.interleaved) & ((g.vpp == 1) | (g.pp > 1)),
        message=lambda g, f: f"pp {g.pp} vpp {g.vpp} with schedule {g.schedule}",
        hint=(
            "several chunks a device need pp above 1 and an interleaved schedule, and the other way"
            " round"
        ),
        after="grid.schedule",
    ),
    GridRule(
        rule="grid.interleave",
        holds=lambda g, f: (
            (g.interleaved == 0) | (f.global_batch // (g.dp * g.microbatch) % g.pp == 0)
        ),
        message=lambda g, f: (
            f"{f.global_batch // (g.dp * g.microbatch)} microbatches a replica do not divide by pp"
            f" {g.pp}"
        ),
        hint="the interleaved schedule runs microbatches in rounds of pp",
        after="grid.batch",
    ),
    GridRule(
        rule="runtime.microbatches",
        holds=lambda g, f: (
            (not f.fills_pipeline)
            | (g.is_1f1b == 0)
            | (f.global_batch // (g.dp * g.microbatch) >= g.pp)
            | (f.global_batch // (g.dp * g.microbatch) == 1)
        ),
        message=lambda g, f: (
            f"{f.global_batch // (g.dp * g.microbatch)} microbatches a replica are fewer than pp"
            f" {g.pp}, which the runtime's 1F1B refuses"
        ),
        hint="a smaller mbs, a lower pp, or schedule=gpipe",
        after="grid.batch",
    ),
)
_GENERAL: Final = (
    GridRule(
        rule="grid.schedule",
        holds=lambda g, f: g.known,
        message=lambda g, f: f"unknown schedule {g.schedule!r}",
        hint=lambda g: nearest(g.schedule, GRID_SCHEDULES),
    ),
    GridRule(
        rule="grid.layers",
        holds=lambda g, f: (g.wave == 0) | (g.first + g.last == 0),
        message=lambda g, f: (
            f"first {g.first} last {g.last} with schedule {g.schedule}, whose first rank has the"
            " last chunk"
        ),
        hint="layers= names every chunk's",
    ),
    GridRule(
        rule="grid.lanes",
        holds=lambda g, f: f.global_batch // (g.dp * g.microbatch) % g.lanes == 0,
        message=lambda g, f: (
            f"{f.global_batch // (g.dp * g.microbatch)} microbatches a replica do not halve over"
            f" the two lanes of {g.schedule}"
        ),
        hint="each lane takes as many",
    ),
)
_MEMORY: Final = (
    GridRule(
        rule="grid.zero",
        holds=lambda g, f: (
            (g.zero == 0) | (g.dp * g.cp % (g.shard + (g.shard == 0)) == 0) | (g.shard == 0)
        ),
        message=lambda g, f: (
            f"shard {g.shard} does not divide dp x cp = {g.dp} x {g.cp} = {g.dp * g.cp}"
        ),
        hint="a sharding group is a whole part of the replicas",
    ),
)
RULES: Final[tuple[GridRule, ...]] = (*_COMMON, *_SEARCHED, *_MEMORY)
"""Rules of a grid whose schedule is one of SCHEDULES; the search and the check of one grid read
this list."""
GENERAL_RULES: Final[tuple[GridRule, ...]] = (*_COMMON, *_GENERAL, *_MEMORY)
"""Rules of a grid whose schedule is lowered only from a general plan."""
