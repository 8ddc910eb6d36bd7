"""Why rows are far off: sentences written after looking, each for the rows that a rule picks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardwright.calibrate.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A sentence for the rows of a source that `applies` picks."""

    source_id: str
    applies: Callable[[Case], bool]
    sentence: str


def _named(*words: str, gpu: str = "", fewest: int = 0, most: int = 1 << 30) -> Callable[[Case], bool]:
    """Rows whose model name or place in the table has one of `words`, on that GPU, on a number of devices."""

    def applies(case: Case) -> bool:
        row = case.measurement
        text = f"{row.model_name} {row.table_or_row} {row.precision}".lower()
        return any(word in text for word in words) and gpu in row.gpu and fewest <= (row.gpu_count or 0) <= most

    return applies


def _always(_: Case) -> bool:
    return True


def _ring(case: Case) -> bool:
    return case.grid.cp >= 4


def _thin_slices(case: Case) -> bool:
    return case.grid.tp > 1 and case.grid.microbatch == 1


def _deep(case: Case) -> bool:
    return case.grid.pp >= 16


def _few_microbatches(case: Case) -> bool:
    return case.job.global_batch <= 2 * case.grid.dp * case.grid.microbatch


def _broadcasts(case: Case) -> bool:
    return case.grid.zero == 1 and not case.grid.shard


def _tied_head(case: Case) -> bool:
    return "fused" in case.runtime or "cross_entropy" in case.measurement.table_or_row


REMARKS: Final[tuple[Remark, ...]] = (
    Remark(
        source_id="dgxc",
        applies=_named("maxtext"),
        sentence="NVIDIA's scripts keep the projections of attention (remat_policy=save_qkv_proj); full recompute is priced.",
    ),
    Remark(
        source_id="dgxc",
        applies=_named("24.11 fp8"),
        sentence="6.44 and 6.72 s on 512 and 1,024 devices lie above the same release's 6.24 s on 2,048; the next release measures 5.8.",
    ),
    Remark(
        source_id="dgxc",
        applies=_named("24.09 fp8"),
        sentence="The same layout took 11.0 s in this container and 10.5 s in the next; releases are not told apart.",
    ),
    Remark(
        source_id="mosaic",
        applies=_named("mpt-13b", gpu="A100-40GB", most=8),
        sentence="States fill the 40 GB device; all rows lose 14 to 17 % at any length and 16 devices do not: allocator retries, probably.",
    ),
    Remark(
        source_id="mosaic",
        applies=_named("mpt-1b", gpu="A100-40GB"),
        sentence="141 TFLOP/s between neighbours of 173 on 16 and 172 on 64 devices: noise at the source.",
    ),
    Remark(
        source_id="mosaic",
        applies=_named("mpt-760m"),
        sentence="Slower than the same model at 2,048 tokens, with microbatches of 48 and 96: an anomaly at the source.",
    ),
    Remark(
        source_id="torchtitan",
        applies=_ring,
        sentence="A step of the ring costs 4.5 s up to cp 2 and 7 to 9 s beyond, though its kernels have the same shape; not understood.",
    ),
    Remark(
        source_id="torchtitan",
        applies=_named("rowwise"),
        sentence="fp8 with a scale a row is priced as bf16, and was slower than bf16 in these runs.",
    ),
    Remark(
        source_id="torchtitan",
        applies=_named("8b"),
        sentence="Copies, barriers and layouts around the pieces of asynchronous tensor parallelism are not priced.",
    ),
    Remark(
        source_id="internevo",
        applies=_few_microbatches,
        sentence="One or two microbatches: gradients between nodes have little to hide behind, and 0.3 to 0.5 s a step are missing.",
    ),
    Remark(
        source_id="internevo",
        applies=_broadcasts,
        sentence="Broadcasts of parameters, one owner after another, cost more over 256 to 512 ranks than latency and bytes say.",
    ),
    Remark(
        source_id="amp_homo",
        applies=_thin_slices,
        sentence="About 3 ms a layer and microbatch are missing with tensor parallelism at microbatch 1; small products may waste tiles.",
    ),
    Remark(
        source_id="amp_homo",
        applies=_deep,
        sentence="The stage with the head is predicted too slow; its card may run at a higher clock than one that only multiplies.",
    ),
    Remark(
        source_id="amp_homo",
        applies=_always,
        sentence="Too fast where replicas of a shallow pipeline share one network card for fp32 gradients; not understood.",
    ),
    Remark(
        source_id="simumax_b200",
        applies=_named("deepseek"),
        sentence="An eager router of dozens of kernels, perhaps unfused rotary embedding, and slower steps in longer runs are not priced.",
    ),
    Remark(
        source_id="mbridge_skills",
        applies=_named("qwen3"),
        sentence="Its profile has 8.3 s of communication (5.3 priced), 3.1 s of it metadata of the dispatcher, and 1.9 s of idle time.",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("(tokendrop)", gpu="GB200"),
        sentence="Too slow: expert traffic inside one NVLink domain or the host's launches cost less than priced; not understood.",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("25.11 nemo container", gpu="GB300"),
        sentence="Too slow: one constant stands for the launches of all hosts, and this host may be faster; not established.",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("25.11 nemo container", gpu="H100"),
        sentence="25.11's dropless schedule takes twice 25.09's with token drop, a regression that its authors list (issue 1998).",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("qwen3_235b", gpu="B300"),
        sentence="Eager overlap of two microbatches takes the host 16 ms a layer where launches explain 9; turned off later (issue 3399).",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("qwen3_235b", gpu="B200"),
        sentence="Eager overlap of two microbatches takes the host longer than its launches explain (issue 3399).",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("tokendrop"),
        sentence="Permutation to fixed capacity is probably unfused and slower than priced.",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("qwen3_30b"),
        sentence="Device time of small experts' products and of their quantisation is too short; not fully established.",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("llama3_70b"),
        sentence="NVFP4: no run pins how much of the 4-bit products' rate a long run keeps.",
    ),
    Remark(
        source_id="mbridge",
        applies=_named("deepseek"),
        sentence="What is captured and what overlaps is known from recipes only; recompute of mlp and moe_act is not described.",
    ),
    Remark(
        source_id="mlm_ci",
        applies=_named("_z3_", "z3"),
        sentence="Megatron-FSDP's own bucket buffers are probably not counted where it shards experts.",
    ),
    Remark(
        source_id="mlm_ci",
        applies=_tied_head,
        sentence="The fused cross-entropy of the older container keeps less than is counted for it.",
    ),
)


def remark_of(case: Case) -> str:
    """The first remark that applies; empty if nobody has looked yet."""
    return next((r.sentence for r in REMARKS if r.source_id == case.measurement.source_id and r.applies(case)), "")
