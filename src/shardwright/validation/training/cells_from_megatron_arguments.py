"""Fill cells of a row from the Megatron-LM arguments of its launch.

The column has all arguments of the launch: others are at Megatron's defaults
(`runtime.parallelism_recompute_precision_from_megatron_arguments`).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.parallelism_recompute_precision_from_megatron_arguments import (
    DEFAULTS,
    has_dropout,
    number_format,
    pipeline_chunks,
    recompute_setting,
    sharding_stage,
    whole_number,
)
from shardwright.runtime.parse_launch_arguments import (
    Arguments,
    options_from_arguments,
    parse_arguments,
)
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.validation.tables.apply_facts_to_row import cell_text, text_of_options
from shardwright.validation.tables.csv_rows import EMPTY
from shardwright.validation.training.fill_empty_cells_others_imply import QUANTUM, padded
from shardwright.validation.training.training_table_columns import TrainingMeasurement

_CELLS: Final = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "ffn-hidden-size": "ffn_hidden",
    "num-attention-heads": "heads",
    "num-query-groups": "kv_heads",
    "seq-length": "seq_len",
    "micro-batch-size": "micro_batch",
    "global-batch-size": "global_batch",
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
    "num-virtual-stages-per-pipeline-rank": "vpp",
    "num-experts": "experts",
    "moe-router-topk": "topk",
    "moe-ffn-hidden-size": "expert_ffn",
    "moe-shared-expert-intermediate-size": "shared_ffn",
    "num-distributed-optimizer-instances": "optimizer_instances",
    "cpu-offloading-num-layers": "host_layers",
    "vocab-size": "tokenizer_words",
}
"""Argument with a whole number -> column."""
_STAGES: Final = ("none", "ZeRO-1", "ZeRO-2", "ZeRO-3")
"""Text of the cell for each ZeRO stage."""
_FREQUENCY: Final = re.compile(r"\(?\[0\]\*([0-9]{1,4})\+\[1\]\*([0-9]{1,4})\)?")


def with_launch_cells(row: TrainingMeasurement, *, assumptions: list[str]) -> TrainingMeasurement:
    """Fill empty cells from the Megatron-LM arguments in column `launch`; note one assumption.

    Raises:
        RuntimeModelError: the arguments cannot be read, or describe a model or a layout of layers
        that is not supported.
    """
    set_arguments = parse_arguments(row.launch) if row.launch else {}
    if not set_arguments:
        return row
    arguments = {**DEFAULTS, **set_arguments}
    filled: dict[str, Any] = {}
    for cells_of in (
        _number_cells,
        _pipeline_cells,
        _format_cells,
        _memory_cells,
        _vocabulary_cell,
        _model_cell,
    ):
        cells = cells_of(arguments, replace(row, **filled))
        filled |= {
            column: value
            for column, value in cells.items()
            if value not in EMPTY and getattr(row, column) in EMPTY
        }
    if filled:
        texts = (f"{column} {_value_text(value)}" for column, value in filled.items())
        assumptions.append(f"{', '.join(texts)}: its launch")
    return replace(row, **filled)


def loads_teacher(row: TrainingMeasurement) -> bool:
    """True if the row's launch loads a teacher's checkpoint, whose folder does not give its sizes.

    Source: Megatron-LM, megatron/post_training/arguments.py and docs/distillation.md.
    """
    return bool(row.launch) and "export-kd-teacher-load" in parse_arguments(row.launch)


def with_launch_options(runtime: str, row: TrainingMeasurement) -> str:
    """Runtime name with options of the row's launch, not recompute; options in `runtime` win.

    Options in the runtime's name win; without a launch the name is unchanged.
    """
    if not row.launch:
        return runtime
    named = load_runtime(runtime)
    base = named.base or named.name
    arguments = {**DEFAULTS, **parse_arguments(row.launch)}
    options = {
        name: value
        for name, value in options_from_arguments(load_runtime(base), arguments)
        if not name.startswith("recompute_")
    }
    text = text_of_options({**options, **dict(named.options)})
    return load_runtime(f"{base} {text}".strip()).name


def _value_text(value: Any) -> str:
    """Text of a cell's value: tuples with commas, others cut at 60 characters."""
    return cell_text(value) if isinstance(value, tuple) else str(value)[:60]


def _number_cells(arguments: Arguments, row: TrainingMeasurement) -> dict[str, Any]:
    """Cells of sizes and parallel degrees, whole numbers of the launch's arguments."""
    numbers: dict[str, Any] = {}
    for name, column in _CELLS.items():
        if name in arguments:
            numbers[column] = whole_number(arguments[name])
            if numbers[column] is None:
                raise RuntimeModelError(
                    f"launch: {column} {arguments[name][:40]!r} is not a whole number",
                    hint="--name value, as a launch script has them",
                )
    if numbers.get("experts", 0) < 2:
        numbers.pop("topk", None)
    return numbers


def _pipeline_cells(arguments: Arguments, row: TrainingMeasurement) -> dict[str, Any]:
    """Cells `vpp` and `stage_layers` (of every chunk), from any of the arguments for them."""
    vpp, chunks = pipeline_chunks(
        arguments, layers=row.layers or 0, pp=row.pp or 1, vpp=row.vpp or 1
    )
    return {"vpp": vpp, **({"stage_layers": chunks} if chunks else {})}


def _format_cells(arguments: Arguments, row: TrainingMeasurement) -> dict[str, Any]:
    """Cells `precision`, `dropout` and `qk_norm` of the launch's arguments."""
    return {
        "precision": number_format(arguments),
        "dropout": int(has_dropout(arguments)),
        "qk_norm": int("qk-layernorm" in arguments),
    }


def _memory_cells(arguments: Arguments, row: TrainingMeasurement) -> dict[str, Any]:
    """Cells `sp`, `zero_stage_or_fsdp`, `recompute` and `ulysses` of the launch's arguments."""
    stage, (granularity, modules) = sharding_stage(arguments), recompute_setting(arguments)
    cells: dict[str, Any] = {
        "sp": int("sequence-parallel" in arguments),
        "zero_stage_or_fsdp": "" if stage is None else _STAGES[stage],
        "recompute": (
            f"selective[{'+'.join(modules)}]" if granularity == "selective" else granularity
        ),
    }
    if arguments.get("cp-comm-type") == "a2a" and (row.cp or 1) > 1:
        cells["ulysses"] = row.cp
    return cells


def _vocabulary_cell(arguments: Arguments, row: TrainingMeasurement) -> dict[str, Any]:
    """Cell `vocab`: the row's tokenizer words, padded to the launch's multiple x tp."""
    quantum = (whole_number(arguments.get("make-vocab-size-divisible-by", "")) or QUANTUM) * (
        row.tp or 1
    )
    return {"vocab": padded(row.tokenizer_words, quantum)} if row.tokenizer_words else {}


def _model_cell(arguments: Arguments, row: TrainingMeasurement) -> dict[str, Any]:
    """Cell `architecture` of the decoder's form, or `config` for latent attention; {} = unneeded.

    With latent attention the form that the row names is ignored.
    """
    latent = "multi-latent-attention" in arguments
    if row.config or (row.architecture and not latent) or "num-layers" not in arguments:
        return {}
    gated, sparse = "swiglu" in arguments, (row.experts or 0) > 1
    dense = _FREQUENCY.fullmatch(arguments.get("moe-layer-freq", "").replace(" ", ""))
    if latent and gated and sparse:
        return {
            "config": json.dumps(
                _deepseek_v3_config(arguments, row, num_dense_layers=int(dense[1]) if dense else 0)
            )
        }
    if latent or dense or "mtp-num-layers" in arguments:
        what = "latent attention" if latent else "some dense layers" if dense else "further tokens"
        raise RuntimeModelError(
            f"launch: {what} of a decoder of this form", hint="say the model in the column config"
        )
    return {
        "architecture": (
            ("mixture" if gated else "experts") if sparse else "llama" if gated else "gpt"
        )
    }


def _deepseek_v3_config(
    arguments: Arguments, row: TrainingMeasurement, *, num_dense_layers: int
) -> dict[str, Any]:
    """Hugging Face configuration of a DeepSeek-V3 decoder; `num_dense_layers` dense layers."""

    def count_or_default(name: str, default: int) -> int:
        """Whole number of an argument; `default` if it is absent or is no whole number."""
        number = whole_number(arguments.get(name, ""))
        return default if number is None else number

    width = row.expert_ffn or row.ffn_hidden or 4 * (row.hidden or 0)
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": row.layers,
        "hidden_size": row.hidden,
        "intermediate_size": row.ffn_hidden or 4 * (row.hidden or 0),
        "num_attention_heads": row.heads,
        "num_key_value_heads": row.heads,
        "vocab_size": row.vocab,
        "q_lora_rank": count_or_default("q-lora-rank", 0) or None,
        "kv_lora_rank": count_or_default("kv-lora-rank", 512),
        "qk_nope_head_dim": count_or_default("qk-head-dim", 128),
        "qk_rope_head_dim": count_or_default("qk-pos-emb-head-dim", 64),
        "v_head_dim": count_or_default("v-head-dim", 128),
        "n_routed_experts": row.experts,
        "num_experts_per_tok": row.topk,
        "moe_intermediate_size": width,
        "n_shared_experts": (row.shared_ffn or 0) // width if width else 0,
        "n_group": count_or_default("moe-router-num-groups", 1),
        "topk_group": count_or_default("moe-router-group-topk", 1),
        "first_k_dense_replace": num_dense_layers,
        "num_nextn_predict_layers": count_or_default("mtp-num-layers", 0),
        "tie_word_embeddings": "untie-embeddings-and-output-weights" not in arguments,
    }
