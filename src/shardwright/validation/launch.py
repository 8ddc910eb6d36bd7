"""A row's cells from the arguments that its run was launched with, as Megatron-LM names them: all that they are, so that what is not
among them is at Megatron's default.

Source of names and defaults: Megatron-LM, megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.arguments import Arguments, options_of, parse_arguments
from shardwright.runtime.registry import load_runtime
from shardwright.validation.implied import QUANTUM
from shardwright.validation.measurements import Measurement
from shardwright.validation.table import EMPTY

MAX_DIGITS: Final = 12
MAX_STAGES: Final = 4096
MAX_LAYOUT: Final = 10_000
"""Characters of a layout that is written out."""
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
_DEFAULTS: Final = {
    "tensor-model-parallel-size": "1",
    "pipeline-model-parallel-size": "1",
    "moe-token-dispatcher-type": "allgather",
    "moe-router-topk": "2",
    "attention-dropout": "0.1",
    "hidden-dropout": "0.1",
    "transformer-impl": "transformer_engine",
}
_FSDP: Final = {"no_shard": "none", "optim": "ZeRO-1", "optim_grads": "ZeRO-2", "optim_grads_params": "ZeRO-3"}
_REPEATED: Final = re.compile(r"\(([A-Za-z|]*)\)\*([0-9]{1,4})|([A-Za-z|])\*([0-9]{1,4})")
_FREQUENCY: Final = re.compile(r"\(?\[0\]\*([0-9]{1,4})\+\[1\]\*([0-9]{1,4})\)?")


def launched(row: Measurement, *, assumptions: list[str]) -> Measurement:
    """`row` with the empty cells that its column `launch` says, and with the options that it sets where the row names a runtime.

    Raises:
        RuntimeModelError: it cannot be read, or says a model or a layout that is not known here.
    """
    if not row.launch:
        return row
    said = parse_arguments(row.launch)
    if not said:
        return row
    arguments = {**_DEFAULTS, **said}
    given: dict[str, Any] = {}
    for read in (_numbers, _pipeline, _formats, _memory, _vocabulary, _model):
        given |= {column: value for column, value in read(arguments, replace(row, **_missing(row, given))).items() if value not in EMPTY}
    filled = _missing(row, given)
    if filled:
        assumptions.append(f"{', '.join(f'{column} {_shown(value)}' for column, value in filled.items())}: its launch")
    return replace(row, **filled)


def loads_teacher(row: Measurement) -> bool:
    """The row's launch loads a teacher's checkpoint: a directory, which does not say the teacher's sizes.

    Source: Megatron-LM, megatron/post_training/arguments.py and docs/distillation.md.
    """
    return bool(row.launch) and "export-kd-teacher-load" in parse_arguments(row.launch)


def launched_options(runtime: str, row: Measurement) -> str:
    """`runtime` with the options that the row's launch sets under those that are set with its name; as it is without a launch."""
    if not row.launch:
        return runtime
    made = load_runtime(runtime)
    own = dict(made.options)
    set_by = options_of(load_runtime(made.base or made.name), {**_DEFAULTS, **parse_arguments(row.launch)})
    words = {name: value for name, value in set_by if not name.startswith("recompute_")} | own
    return load_runtime(" ".join([made.base or made.name, *(f"{name}={value}" for name, value in words.items())])).name


def _missing(row: Measurement, given: dict[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in given.items() if getattr(row, column) in EMPTY}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)[:60]


def _whole(text: str) -> int | None:
    """The number; None where it is none, or more than anybody has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _numbers(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    counts = {column: arguments[name] for name, column in _CELLS.items() if name in arguments}
    found: dict[str, Any] = {column: _whole(text) for column, text in counts.items()}
    wrong = next((f"{column} {counts[column][:40]!r}" for column, value in found.items() if value is None), "")
    if wrong:
        raise RuntimeModelError(f"launch: {wrong} is not a whole number", hint="--name value, as a launch script has them")
    if found.get("experts", 0) < 2:
        found.pop("topk", None)
    return found


def _pipeline(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """Chunks of a rank and layers of a stage, by any of the arguments that say them."""
    if "pipeline-model-parallel-layout" in arguments:
        chunks = _layout(arguments["pipeline-model-parallel-layout"])
        if len(chunks) % (row.pp or 1):
            raise RuntimeModelError(f"launch: a layout of {len(chunks)} chunks for pp {row.pp}", hint="a whole number of chunks a rank")
        return {"vpp": len(chunks) // (row.pp or 1), "stage_layers": chunks}
    found: dict[str, Any] = {"vpp": row.vpp or 1}
    each = _whole(arguments.get("num-layers-per-virtual-pipeline-stage", ""))
    if each and row.layers and row.pp:
        found["vpp"] = max(1, row.layers // (row.pp * each))
    first, last = (_whole(arguments.get(f"decoder-{end}-pipeline-num-layers", "")) for end in ("first", "last"))
    if (first or last) and row.layers and MAX_STAGES >= (row.pp or 1) > 1 and found["vpp"] == 1:
        found["stage_layers"] = _between(row.layers, row.pp or 1, first, last)
    return found


def _between(layers: int, pp: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Layers of each stage where those of the ends are said: the rest evenly."""
    free = pp - (first is not None) - (last is not None)
    each = (layers - (first or 0) - (last or 0)) // max(free, 1)
    return (each if first is None else first, *(each,) * (pp - 2), each if last is None else last)


def _layout(text: str) -> tuple[int, ...]:
    """Layers (``t``) of each chunk of a layout: ``Et*3|(tt|)*6mL`` is 3, six times 2, and 0 beside what predicts further and the loss."""
    whole = text
    while (found := _REPEATED.search(whole)) is not None:
        body, times = (found[1], int(found[2])) if found[2] else (found[3], int(found[4]))
        if len(whole) + len(body) * times > MAX_LAYOUT:
            break
        whole = whole[: found.start()] + body * times + whole[found.end() :]
    if set(whole) - set("EtmL|"):
        raise RuntimeModelError(f"launch: layout {text[:40]!r} is not known here", hint="E, t, m, L, | and repetitions")
    chunks = whole.split("|")
    return tuple(chunk.count("t") for chunk in chunks)


def _formats(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    base = next((name for name in ("bf16", "fp16") if name in arguments), "")
    few = "fp4" if "fp4-format" in arguments else "fp8" if "fp8-format" in arguments else ""
    dropout = any(float(arguments[name] or 0) > 0 for name in ("attention-dropout", "hidden-dropout") if _is_number(arguments[name]))
    return {"precision": few or base, "dropout": int(dropout), "qk_norm": int("qk-layernorm" in arguments)}


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{0,9}(\.[0-9]{0,9})?", text) is not None and text not in ("", ".")


def _memory(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """Sequence parallelism, sharded states and recompute; Ulysses as context parallelism."""
    found: dict[str, Any] = {"sp": int("sequence-parallel" in arguments)}
    if "use-megatron-fsdp" in arguments or "use-custom-fsdp" in arguments:
        found["zero_stage_or_fsdp"] = _FSDP.get(arguments.get("data-parallel-sharding-strategy", "no_shard"), "")
    else:
        found["zero_stage_or_fsdp"] = "ZeRO-1" if "use-distributed-optimizer" in arguments else "none"
    granularity = arguments.get("recompute-granularity", "none")
    modules = re.findall(r"[a-z_]+", arguments.get("recompute-modules", "core_attn"))
    found["recompute"] = f"selective[{'+'.join(modules)}]" if granularity == "selective" else granularity
    if arguments.get("cp-comm-type") == "a2a" and (row.cp or 1) > 1:
        found["ulysses"] = row.cp
    return found


def _vocabulary(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """The tokenizer's words padded to what the launch says."""
    quantum = (_whole(arguments.get("make-vocab-size-divisible-by", "")) or QUANTUM) * (row.tp or 1)
    return {"vocab": -(-row.tokenizer_words // quantum) * quantum} if row.tokenizer_words else {}


def _model(arguments: Arguments, row: Measurement) -> dict[str, Any]:
    """The form of the decoder; with latent attention a configuration in the words of DeepSeek-V3's, whatever form the row names."""
    latent = "multi-latent-attention" in arguments
    if row.config or (row.architecture and not latent) or "num-layers" not in arguments:
        return {}
    gated, sparse = "swiglu" in arguments, (row.experts or 0) > 1
    dense = _FREQUENCY.fullmatch(arguments.get("moe-layer-freq", "").replace(" ", ""))
    if latent and gated and sparse:
        return {"config": json.dumps(_latent(arguments, row, first=int(dense[1]) if dense else 0))}
    if latent or dense or "mtp-num-layers" in arguments:
        what = "latent attention" if latent else "some dense layers" if dense else "further tokens"
        raise RuntimeModelError(f"launch: {what} of a decoder of this form", hint="say the model in the column config")
    return {"architecture": ("mixture" if gated else "experts") if sparse else "llama" if gated else "gpt"}


def _latent(arguments: Arguments, row: Measurement, *, first: int) -> dict[str, Any]:
    def count(name: str, otherwise: int) -> int:
        said = _whole(arguments.get(name, ""))
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
