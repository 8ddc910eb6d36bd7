"""Columns of tables of measured training runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.tables.csv_rows import CLUSTER_FILES, TableForm, columns_of


class TrainingMetric(StrEnum):
    """Metrics of a training run: seconds a step, and bytes on a device."""

    TIME = "time"
    MEMORY = "memory"


class MemoryKind(StrEnum):
    """Kind of measured memory (allocated or reserved), and the device of the measurement."""

    ALLOCATED_FIRST_STAGE = "allocated-first-stage"
    ALLOCATED_LAST_STAGE = "allocated-last-stage"
    ALLOCATED_WORST = "allocated-worst"
    RESERVED_WORST = "reserved-worst"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMeasurement:
    """A row of a table of training runs; None or empty means that the source has no value.

    Args:
        line: line of the file, 1 is the header.
        source_id, source, table_or_row: where it was published.
        params_b: billions of parameters as the source prints them.
        layers ...
        shared_experts: the model's sizes.
        micro_batch: samples of a microbatch on one replica.
        gpu_count: devices.
        gpus_per_node: devices a node.
        sp: sequence parallelism.
        zero_stage_or_fsdp, recompute, schedule, offload, precision: as printed.
        measured_iter_time_s: seconds a step.
        tokens_per_s_per_gpu, tflops_per_gpu: as printed (see flops_convention).
        peak_mem_gb: GiB.
        memory_kind: what they count.
        gpu_mix: a mixed cluster as printed.
        notes: free; ``OOM`` in it = did not fit.
        runtime: what ran, ``megatron-bridge graphs=iteration``.
        options: more of what its launch script set, ``loss=te``.
        laboratory: group of sources that may share configurations; empty = the source alone.
        launch: the arguments of its launch as Megatron-LM names them, all of them,
            ``--tensor-model-parallel-size 2 --bf16``: they fill empty cells and set options.
        cluster: nodes and network where `gpu` does not say them: an expression, ``aws-p3.8xlarge:3
            + aws-g4dn.12xlarge:1``, or the path of a cluster file (from the table's folder).
        config: a Hugging Face config.json, as its path (from the table's folder) or its text; it
            says the whole model.
        architecture: a model of the catalog (empty = the one called `model_name`), or a form of
            decoder built from the row's sizes: ``gpt``, ``llama``, ``nemotron`` or ``experts``.
        expert_ffn, shared_ffn: widths of an expert and of the shared one.
        qk_norm, dropout: 1 = on.
        expert_imbalance: tokens of the busiest device's experts over the mean; empty = 1.
        etp: tensor parallel degree of experts.
        ulysses: part of cp that trades heads for positions.
        optimizer_instances: copies of the sharded states.
        gradient_accumulation: microbatches a step; tells the global batch where that is empty.
        host_layers: layers of each chunk whose activations wait in host memory.
        gradient_wire: dtype of gradients on the wire; empty = the runtime's.
        stage_layers: layers of each pipeline stage, ``13,12,12``.
        train: what of the model is trained, ``lora:r16:attn,mlp`` or ``frozen:embed``; empty = all.
        teacher: frozen model whose logits the loss reads: a catalog name, or the path of a
            config.json (from the table's folder).
        tokenizer_words: an empty vocabulary is this many words, padded to a multiple of 128 x tp
            (Megatron's rule).
        global_batch_tokens: tokens a step, for an empty `global_batch`.
        tokens_per_s, samples_per_s: of all devices together.
        tflops_formula: ``sc21`` where tflops_per_gpu is of that paper's formula and may be turned
            into seconds.
    """

    line: int
    source_id: str
    table_or_row: str
    model_name: str
    gpu: str
    gpu_count: int | None
    source: str = ""
    params_b: float | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    experts: int | None = None
    topk: int | None = None
    shared_experts: float | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    gpus_per_node: int | None = None
    intra_bw: str = ""
    inter_net: str = ""
    precision: str = ""
    tp: int | None = None
    sp: int | None = None
    cp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    dp: int | None = None
    zero_stage_or_fsdp: str = ""
    recompute: str = ""
    schedule: str = ""
    offload: str = ""
    measured_iter_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_mem_gb: float | None = None
    flops_convention: str = ""
    notes: str = ""
    gpu_mix: str = ""
    runtime: str = ""
    options: str = ""
    laboratory: str = ""
    launch: str = ""
    cluster: str = ""
    config: str = ""
    architecture: str = ""
    expert_ffn: int | None = None
    shared_ffn: int | None = None
    qk_norm: int | None = None
    etp: int | None = None
    ulysses: int | None = None
    optimizer_instances: int | None = None
    gradient_accumulation: int | None = None
    dropout: int | None = None
    expert_imbalance: float | None = None
    train: str = ""
    teacher: str = ""
    gradient_wire: str = ""
    stage_layers: tuple[int, ...] = ()
    host_layers: int | None = None
    tokenizer_words: int | None = None
    memory_kind: MemoryKind | None = None
    tflops_formula: str = ""
    global_batch_tokens: int | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None


def _memory_kind(cell: str) -> MemoryKind | None:
    """Parse a cell as a kind of memory; None if it is empty."""
    word = cell.strip()
    if word and word not in {kind.value for kind in MemoryKind}:
        raise ValueError(f"not one of {', '.join(MemoryKind)}")
    return MemoryKind(word) if word else None


TRAINING_TABLE: Final = TableForm(
    make=TrainingMeasurement,
    columns=columns_of(TrainingMeasurement, more={"MemoryKind | None": _memory_kind}),
    required=("source_id", "table_or_row", "model_name", "gpu", "gpu_count"),
    metrics=tuple(TrainingMetric),
    files={"config": ("",), "teacher": (".json",), "cluster": CLUSTER_FILES},
)
