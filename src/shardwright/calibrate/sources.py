"""What the sources of measurements have in common: the runtime that ran, the fold it belongs to, what its memory column means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardwright.calibrate.case import MemoryKind
from shardwright.calibrate.measurements import Measurement
from shardwright.calibrate.megatron_ci import settings_of
from shardwright.calibrate.recipes import bridge_runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """One source of rows.

    Args:
        source_id: as in the table. laboratory: fold; rows of one laboratory or vendor leak into each other.
        runtime: name of the runtime that ran, unless a word in the row says otherwise. reason: why that one.
        words: (word in model name or notes, runtime) in order of precedence; an empty runtime = not supported.
        dropout: the runs had dropout on. sequence_parallel, zero: what an empty column means in this source.
        memory: what its memory column counts.
        timed: False if its times are not of the ordinary mode of execution.
        local_batch: an empty global batch is the microbatch times dp.
        functional_tests: rows are tests whose names settle what they do not print (`megatron_ci`).
        ulysses: context parallelism trades heads for positions (all-to-all) instead of passing keys round.
        gradient_wire: dtype of gradients on the wire where a configuration of the source sets it; empty = the runtime's.
        tokenizer_words: an empty vocabulary is this many words, padded to a multiple of 128 x tp (Megatron's rule).
    """

    source_id: str
    laboratory: str
    runtime: str
    reason: str
    words: tuple[tuple[str, str], ...] = ()
    dropout: bool = False
    sequence_parallel: bool = False
    zero: int = 0
    memory: MemoryKind = MemoryKind.NONE
    timed: bool = True
    local_batch: bool = False
    ulysses: bool = False
    gradient_wire: str = ""
    tokenizer_words: int = 0
    functional_tests: bool = False


_NEMO_FLAGS: Final = "NeMo's recipes set sequence parallelism, the distributed optimizer and userbuffers"

_AMP: Final = "scripts and ds_config.json of AMP's repository: Megatron-LM 1.1.5 without fused kernels, fp32_allreduce"

PROVENANCE: Final = (
    Provenance(source_id="korthikanti", laboratory="megatron-papers", runtime="megatron-2022", reason="paper of May 2022", dropout=True),
    Provenance(source_id="mlm_sc21", laboratory="megatron-papers", runtime="megatron-2021", reason="paper of April 2021", dropout=True),
    Provenance(source_id="mlm_2020", laboratory="megatron-papers", runtime="megatron-2021", reason="earlier than SC21", dropout=True),
    Provenance(
        source_id="mlm_h100",
        laboratory="megatron-papers",
        runtime="megatron-core-0.12",
        reason="Megatron-Core 0.8 with overlap flags",
        sequence_parallel=True,
        zero=1,
    ),
    Provenance(
        source_id="mlm_llama",
        laboratory="megatron-papers",
        runtime="megatron-core-0.12",
        reason="examples/llama of Megatron-LM with its overlap flags",
        sequence_parallel=True,
        zero=1,
    ),
    Provenance(
        source_id="dgxc",
        laboratory="nvidia-nemo",
        runtime="nemo-24.11",
        reason=_NEMO_FLAGS,
        words=(
            ("maxtext", "maxtext"),
            ("paxml", ""),
            # its configure.sh sets NVTE_FUSED_ATTN=0 and its gpt3_175b_hydra.yaml fuses no cross-entropy (NVIDIA/dgxc-benchmarking)
            ("nemo megatron", "nemo-24.07"),
            ("release v25.04", "nemo-25.04"),
            ("release v25.05", "nemo-25.04"),
        ),
        sequence_parallel=True,
        zero=1,
    ),
    Provenance(source_id="nemo2407", laboratory="nvidia-nemo", runtime="nemo-24.07", reason=_NEMO_FLAGS, sequence_parallel=True, zero=1),
    Provenance(
        source_id="nemo_launcher", laboratory="nvidia-nemo", runtime="nemo-24.07", reason=_NEMO_FLAGS, sequence_parallel=True, zero=1
    ),
    Provenance(
        source_id="nemo_longseq", laboratory="nvidia-nemo", runtime="nemo-24.11", reason=_NEMO_FLAGS, sequence_parallel=True, zero=1
    ),
    Provenance(
        source_id="mbridge",
        laboratory="nvidia-nemo",
        runtime="megatron-bridge",
        reason="Megatron-Bridge continues NeMo 2",
        sequence_parallel=True,
        zero=1,
    ),
    Provenance(
        source_id="mbridge_skills",
        laboratory="nvidia-nemo",
        runtime="megatron-bridge",
        reason="Megatron-Bridge continues NeMo 2",
        sequence_parallel=True,
        zero=1,
        memory=MemoryKind.ALLOCATED_FIRST_STAGE,
    ),
    Provenance(source_id="mosaic", laboratory="mosaic", runtime="fsdp1-llm-foundry", reason="llm-foundry's benchmark of 2023"),
    Provenance(
        source_id="simumax_b200",
        laboratory="simumax",
        runtime="megatron-core-0.16-serial",
        reason="Megatron-LM of January 2026 without any overlap: launch scripts and guide of SimuMax",
        zero=1,
        ulysses=True,
        memory=MemoryKind.ALLOCATED_FIRST_STAGE,
    ),
    Provenance(
        source_id="torchtitan",
        laboratory="torchtitan",
        runtime="torchtitan-0.2",
        reason="FSDP2 under torch.compile",
        words=(
            # the benchmark page of June 2025; the others are of the paper and its preview, autumn 2024
            ("fsdp_float8_all_gather", "torchtitan-0.2"),
            ("vanillatp", "torchtitan-0.1"),
            ("asynctp", "torchtitan-0.1-async-tp"),
            ("compile", "torchtitan-0.1"),
            ("; fsdp;", "torchtitan-0.2-eager"),
        ),
        sequence_parallel=True,
        zero=3,
        memory=MemoryKind.RESERVED_WORST,
        local_batch=True,
    ),
    Provenance(source_id="internevo", laboratory="internevo", runtime="internevo", reason="InternEvo's own performance pages"),
    Provenance(
        source_id="amp_homo",
        laboratory="amp",
        runtime="deepspeed-2022-eager",
        reason=_AMP,
        dropout=True,
        gradient_wire="fp32",
    ),
    Provenance(
        source_id="amp_het",
        laboratory="amp",
        runtime="deepspeed-2022-eager",
        reason=_AMP,
        dropout=True,
        gradient_wire="fp32",
    ),
    Provenance(
        source_id="bigsci_v100", laboratory="bigsci", runtime="deepspeed-2022", reason="BigScience's Megatron-DeepSpeed", dropout=True
    ),
    Provenance(source_id="bloom", laboratory="bigsci", runtime="deepspeed-2022", reason="BigScience's Megatron-DeepSpeed", dropout=True),
    Provenance(
        source_id="mlm_ci",
        laboratory="megatron-ci",
        runtime="megatron-core-0.12-plain",
        reason="functional tests of Megatron-Core",
        functional_tests=True,
        memory=MemoryKind.ALLOCATED_LAST_STAGE,
        timed=False,
        tokenizer_words=50257,
    ),
    Provenance(source_id="maxtext", laboratory="jax", runtime="maxtext", reason="MaxText's own pages", zero=3),
    Provenance(
        source_id="sailor",
        laboratory="sailor",
        runtime="deepspeed-2022",
        reason="its runner builds on Megatron-DeepSpeed",
        memory=MemoryKind.ALLOCATED_WORST,
    ),
)
_BY_ID: Final = {p.source_id: p for p in PROVENANCE}

# bytes/s one direction of all cards of a node, by the words of the table
NETWORKS: Final = {
    "8x200gb hdr ib per node (selene)": 200e9,
    "8x hdr 200gb/s": 200e9,
    "1600 gbps node-node interconnect (roce)": 200e9,
    "4x100gb roce": 50e9,
    "400 gb/s per gpu rdma": 400e9,
    "50 gb/s (aws g4dn.12xlarge)": 6.25e9,
}

# words of the `gpu` column -> catalog name
ACCELERATORS: Final = {
    "a100-80gb": "a100-sxm-80gb",
    "a100-40gb": "a100-sxm-40gb",
    "a100-40gb(dgx-a100)": "a100-sxm-40gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "a800-80gb": "a800-sxm-80gb",
    "h100-80gb": "h100-sxm",
    "h100-96gb-hbm2e-500w": "h100-sxm-96gb-500w",
    "h200-141gb": "h200-sxm",
    "b200": "b200-sxm",
    "b200-sxm": "b200-sxm",
    "b300": "b300-sxm",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "gh200-96gb": "gh200-96gb",
    "t4-16gb": "t4",
    "v100-32gb": "v100-sxm-32gb",
    "v100-16gb": "v100-sxm-16gb",
    "v100-32gb(dgx-2)": "v100-sxm-32gb",
    "v100-16gb (aws p3.16xlarge)": "v100-sxm-16gb",
    "mi355x": "mi355x",
    "tpuv3": "tpu-v3",
    "tpuv4": "tpu-v4",
    "tpuv5e": "tpu-v5e",
    "tpuv5p": "tpu-v5p",
    "tpuv6e": "tpu-v6e",
}

# rows that cannot be as printed, or that leave out what they need to run: (start of the source's row, device, words of its sharding) -> why
UNPRINTED: Final = (
    (
        ("mbridge", "LLAMA3_70B", "GB300", "FSDP"),
        "activations of 20 of 80 layers on the host (cpu_offloading_num_layers in Megatron-Bridge's llama3 workload_base_configs)",
    ),
    (
        ("mbridge", "LLAMA3_70B", "GB200", "FSDP"),
        "activations of 40 of 80 layers on the host (cpu_offloading_num_layers in Megatron-Bridge's llama3 workload_base_configs)",
    ),
)
MISPRINTED: Final = {
    ("mbridge", "26.02.01 NeMo Container/Pre-Training/Model: LLAMA3_70B L399"): "26.02, 26.04 and the recipe say pp 4, vpp 5, microbatch 1",
    ("mbridge", "26.02.01 NeMo Container/Pre-Training/Model: LLAMA3_70B L401"): "26.02, 26.04 and the recipe say pp 4, vpp 5, microbatch 1",
    (
        "mbridge",
        "26.02.01 NeMo Container/Pre-Training/Model: Qwen3_30B_a3B L445",
    ): "26.02 takes 51.3 s with this layout; the recipe had ep 16, pp 1 by then (PR 2477)",
    ("mbridge", "25.09 NeMo Container/Pre-Training/System: DGX-GB200 L608b"): "microbatch of the other variant; the recipe says 1",
}


def provenance_of(row: Measurement) -> Provenance | None:
    """What is known of a row's source; None for an unknown one."""
    return _BY_ID.get(row.source_id)


def unprinted(row: Measurement) -> str:
    """What the run of a row needed and its table does not print; empty if nothing is known to be missing."""
    sharding = row.zero_stage_or_fsdp
    for (source_id, model, gpu, words), reason in UNPRINTED:
        if (row.source_id, row.model_name, row.gpu) == (source_id, model, gpu) and sharding.startswith(words):
            return reason
    return ""


def misprinted(row: Measurement) -> str:
    """Why a row's configuration is not the one that ran; empty if there is no reason to doubt it."""
    return MISPRINTED.get((row.source_id, row.table_or_row), "")


def runtime_of(row: Measurement, *, provenance: Provenance) -> str:
    """Name of the runtime that ran a row; empty if it is not described here."""
    if provenance.functional_tests:
        return settings_of(row).runtime
    text = f"{row.model_name}; {row.table_or_row}; {row.notes}".lower()
    recipe = bridge_runtime(row) if row.source_id.startswith("mbridge") else ""
    return next((runtime for word, runtime in provenance.words if word in text), recipe or provenance.runtime)
