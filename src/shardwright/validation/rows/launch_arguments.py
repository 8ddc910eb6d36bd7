"""A row's cells from the arguments that its run was launched with, as Megatron-LM names them: all
that they are, so that what is not among them is at Megatron's default
(`runtime.megatron_arguments`).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.arguments import Arguments, options_of, parse_arguments
from shardwright.runtime.megatron_arguments import (
    DEFAULTS,
    has_dropout,
    number_format,
    pipeline_chunks,
    recomputed,
    sharding_stage,
    whole_number,
)
from shardwright.runtime.registry import load_runtime
from shardwright.validation.rows.implied_cells import QUANTUM
from shardwright.validation.tables.csv_rows import EMPTY
from shardwright.validation.tables.measured_rows import Measurement

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
"""Argument -> column, of those that are whole numbers."""
_STAGES: Final = ("none", "ZeRO-1", "ZeRO-2", "ZeRO-3")
"""Word of a table for each stage."""
_FREQUENCY: Final = re.compile(r"\(?\[0\]\*([0-9]{1,4})\+\[1\]\*([0-9]{1,4})\)?")


def launched(row: Measurement, *, assumptions: list[str]) -> Measurement:
    """`row` with the empty cells that its column `launch` says, and with the options that it sets
    where the row names a runtime.

    Raises:
        RuntimeModelError: it cannot be read, or says a model or a layout that is not known here.
    """
    if not row.launch:
        return row
    said = parse_arguments(row.launch)
    if not said:
        return row
    arguments = {**DEFAULTS, **said}
    given: dict[str, Any] = {}
    for read in (_numbers, _pipeline, _formats, _memory, _vocabulary, _model):
        given |= {
            column: value
            for column, value in read(arguments, replace(row, **_missing(row, given))).items()
            if value not in EMPTY
        }
    filled = _missing(row, given)
    if filled:
        assumptions.append(
            f"{', '.join(f'{column} {_shown(value)}' for column, value in filled.items())}: its"
            " launch"
        )
    return replace(row, **filled)


def loads_teacher(row: Measurement) -> bool:
    """The row's launch loads a teacher's checkpoint: a directory, which does not say the teacher's
    sizes.

    Source: Megatron-LM, megatron/post_training/arguments.py and docs/distillation.md.
    """
    return bool(row.launch) and "export-kd-teacher-load" in parse_arguments(row.launch)


def launched_options(runtime: str, row: Measurement) -> str:
    """`runtime` with the options that the row's launch sets under those that are set with its name;
    as it is without a launch.
    """
    if not row.launch:
        return runtime
    made = load_runtime(runtime)
    own = dict(made.options)
    set_by = options_of(
        load_runtime(made.base or made.name), {**DEFAULTS, **parse_arguments(row.launch)}
    )
    words = {name: value for name, value in set_by if not name.startswith("recompute_")} | own
    return load_runtime(
        " ".join([made.base or made.name, *(f"{name}={value}" for name, value in words.items())])
    ).name


def _missing(row: Measurement, given: dict[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in given.items() if getattr(row, column) in EMPTY}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)[:60]


def _numbers(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    counts = {column: arguments[name] for name, column in _CELLS.items() if name in arguments}
    found: dict[str, Any] = {column: whole_number(text) for column, text in counts.items()}
    wrong = next(
        (f"{column} {counts[column][:40]!r}" for column, value in found.items() if value is None),
        "",
    )
    if wrong:
        raise RuntimeModelError(
            f"launch: {wrong} is not a whole number",
            hint="--name value, as a launch script has them",
        )
    if found.get("experts", 0) < 2:
        found.pop("topk", None)
    return found


def _pipeline(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """Chunks of a rank and layers of a stage, by any of the arguments that say them."""
    vpp, chunks = pipeline_chunks(
        arguments, layers=row.layers or 0, pp=row.pp or 1, vpp=row.vpp or 1
    )
    return {"vpp": vpp, **({"stage_layers": chunks} if chunks else {})}


def _formats(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    return {
        "precision": number_format(arguments),
        "dropout": int(has_dropout(arguments)),
        "qk_norm": int("qk-layernorm" in arguments),
    }


def _memory(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """Sequence parallelism, sharded states and recompute; Ulysses as context parallelism."""
    stage, (granularity, modules) = sharding_stage(arguments), recomputed(arguments)
    found: dict[str, Any] = {
        "sp": int("sequence-parallel" in arguments),
        "zero_stage_or_fsdp": "" if stage is None else _STAGES[stage],
        "recompute": (
            f"selective[{'+'.join(modules)}]" if granularity == "selective" else granularity
        ),
    }
    if arguments.get("cp-comm-type") == "a2a" and (row.cp or 1) > 1:
        found["ulysses"] = row.cp
    return found


def _vocabulary(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """The tokenizer's words padded to what the launch says."""
    quantum = (whole_number(arguments.get("make-vocab-size-divisible-by", "")) or QUANTUM) * (
        row.tp or 1
    )
    return {"vocab": -(-row.tokenizer_words // quantum) * quantum} if row.tokenizer_words else {}


def _model(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """The form of the decoder; with latent attention a configuration in the words of DeepSeek-V3's,
    whatever form the row names.
    """
    latent = "multi-latent-attention" in arguments
    if row.config or (row.architecture and not latent) or "num-layers" not in arguments:
        return {}
    gated, sparse = "swiglu" in arguments, (row.experts or 0) > 1
    dense = _FREQUENCY.fullmatch(arguments.get("moe-layer-freq", "").replace(" ", ""))
    if latent and gated and sparse:
        return {"config": json.dumps(_latent(arguments, row, first=int(dense[1]) if dense else 0))}
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


def _latent(arguments: Arguments, row: Measurement, *, first: int) -> dict[str, Any]:
    def count(name: str, otherwise: int) -> int:
        said = whole_number(arguments.get(name, ""))
        return otherwise if said is None else said

    width = row.expert_ffn or row.ffn_hidden or 4 * (row.hidden or 0)
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": row.layers,
        "hidden_size": row.hidden,
        "intermediate_size": row.ffn_hidden or 4 * (row.hidden or 0),
        "num_attention_heads": row.heads,
        "num_key_value_heads": row.heads,
        "vocab_size": row.vocab,
        "q_lora_rank": count("q-lora-rank", 0) or None,
        "kv_lora_rank": count("kv-lora-rank", 512),
        "qk_nope_head_dim": count("qk-head-dim", 128),
        "qk_rope_head_dim": count("qk-pos-emb-head-dim", 64),
        "v_head_dim": count("v-head-dim", 128),
        "n_routed_experts": row.experts,
        "num_experts_per_tok": row.topk,
        "moe_intermediate_size": width,
        "n_shared_experts": (row.shared_ffn or 0) // width if width else 0,
        "n_group": count("moe-router-num-groups", 1),
        "topk_group": count("moe-router-group-topk", 1),
        "first_k_dense_replace": first,
        "num_nextn_predict_layers": count("mtp-num-layers", 0),
        "tie_word_embeddings": "untie-embeddings-and-output-weights" not in arguments,
    }
