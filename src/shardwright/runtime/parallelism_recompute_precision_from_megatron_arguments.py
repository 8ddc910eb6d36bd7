"""Readers of parallelism, recompute and precision settings in Megatron-LM's arguments.

Arguments that are missing have their defaults. Source of names and defaults: Megatron-LM,
megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.parse_launch_arguments import Arguments

MAX_DIGITS: Final = 12
MAX_STAGES: Final = 4096
MAX_LAYOUT: Final = 10_000
"""Characters of an expanded pipeline layout."""
DEFAULTS: Final[Arguments] = MappingProxyType(
    {
        "tensor-model-parallel-size": "1",
        "pipeline-model-parallel-size": "1",
        "moe-token-dispatcher-type": "allgather",
        "moe-router-topk": "2",
        "attention-dropout": "0.1",
        "hidden-dropout": "0.1",
        "transformer-impl": "transformer_engine",
    }
)
"""Arguments whose default is not "not set"."""
MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "layernorm": "recompute_norms",
        "mla_up_proj": "recompute_mla",
        "moe_act": "recompute_moe_act",
        "mlp": "recompute_mlp",
        "shared_experts": "recompute_shared",
        "moe": "recompute_moe",
    }
)
"""Module of ``--recompute-modules`` -> option of a runtime; ``core_attn`` is
``recompute=selective`` of a grid.
"""
_STAGES: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``--data-parallel-sharding-strategy`` of Megatron-FSDP -> stage of ZeRO."""
_REPEATED: Final = re.compile(r"\(([A-Za-z|]*)\)\*([0-9]{1,4})|([A-Za-z|])\*([0-9]{1,4})")


def whole_number(text: str) -> int | None:
    """Parse a non-negative whole number; None if no number or over `MAX_DIGITS` digits long."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def layout_layers(text: str) -> tuple[int, ...]:
    """Decoder layers of each chunk of a ``--pipeline-model-parallel-layout`` text.

    ``Et*3|(tt|)*6mL`` has 3, six times 2, and 0 beside the multi-token predictor and the loss: each
    ``t`` is a layer.

    Raises:
        RuntimeModelError: the layout has other letters, or is too long when expanded.
    """
    layout = text.replace(",", "").replace("\\", "").strip()
    while (match := _REPEATED.search(layout)) is not None:
        body, times = (match[1], int(match[2])) if match[2] else (match[3], int(match[4]))
        if len(layout) + len(body) * times > MAX_LAYOUT:
            break
        layout = layout[: match.start()] + body * times + layout[match.end() :]
    if set(layout) - set("EtmL|"):
        raise RuntimeModelError(
            f"launch: layout {text[:40]!r} is not known here", hint="E, t, m, L, | and repetitions"
        )
    return tuple(chunk.count("t") for chunk in layout.split("|"))


def pipeline_chunks(
    arguments: Arguments, *, layers: int, pp: int, vpp: int = 1
) -> tuple[int, tuple[int, ...]]:
    """(chunks a rank, layers of each chunk or stage) from Megatron's arguments; () = even layers.

    Empty layers = layers are divided evenly.

    Args:
        layers: layers of the decoder, 0 = not known.
        vpp: chunks a rank where an argument sets the number itself.

    Raises:
        RuntimeModelError: a layout cannot be read, or its chunks are no whole number a rank.
    """
    if "pipeline-model-parallel-layout" in arguments:
        chunks = layout_layers(arguments["pipeline-model-parallel-layout"])
        if len(chunks) % pp:
            raise RuntimeModelError(
                f"launch: a layout of {len(chunks)} chunks for pp {pp}",
                hint="a whole number of chunks a rank",
            )
        return len(chunks) // pp, chunks
    chunk_layers = whole_number(arguments.get("num-layers-per-virtual-pipeline-stage", ""))
    ends = [
        int(f"account-for-{end}-in-pipeline-split" in arguments) for end in ("embedding", "loss")
    ]
    layers_with_ends = layers + sum(ends)
    if chunk_layers and layers:
        vpp = max(1, layers_with_ends // (pp * chunk_layers))
    if sum(ends) and layers and MAX_STAGES >= pp * vpp > 1 and layers_with_ends % (pp * vpp) == 0:
        size = layers_with_ends // (pp * vpp)
        return vpp, (size - ends[0], *(size,) * (pp * vpp - 2), size - ends[1])
    first_layers, last_layers = (
        whole_number(arguments.get(f"decoder-{end}-pipeline-num-layers", ""))
        for end in ("first", "last")
    )
    if (first_layers or last_layers) and layers and MAX_STAGES >= pp > 1 and vpp == 1:
        return vpp, _end_stage_layers(layers, pp, first_layers, last_layers)
    return vpp, ()


def _end_stage_layers(
    layers: int, pp: int, first_layers: int | None, last_layers: int | None
) -> tuple[int, ...]:
    """(pp,) layers of each stage: given for the first or last, the rest divided evenly."""
    num_middle = pp - (first_layers is not None) - (last_layers is not None)
    middle_layers = (layers - (first_layers or 0) - (last_layers or 0)) // max(num_middle, 1)
    return (
        middle_layers if first_layers is None else first_layers,
        *(middle_layers,) * (pp - 2),
        middle_layers if last_layers is None else last_layers,
    )


def number_format(arguments: Arguments) -> str:
    """GEMM number format that the arguments set: bf16, fp16, fp8 or fp4; empty if not set."""
    base = next((name for name in ("bf16", "fp16") if name in arguments), "")
    return "fp4" if "fp4-format" in arguments else "fp8" if "fp8-format" in arguments else base


def has_dropout(arguments: Arguments) -> bool:
    """True if the arguments set attention or hidden dropout above 0; False where neither is set."""
    rates = (arguments.get(name, "") for name in ("attention-dropout", "hidden-dropout"))
    return any(float(text) > 0 for text in rates if _is_number(text))


def _is_number(text: str) -> bool:
    """True if the text is a non-negative decimal number."""
    return re.fullmatch(r"[0-9]{0,9}(\.[0-9]{0,9})?", text) is not None and text not in ("", ".")


def sharding_stage(arguments: Arguments) -> int | None:
    """ZeRO stage that the arguments set, 0 if none do; None for an unknown strategy or stage."""
    if "zero-stage" in arguments:
        return {"0": 0, "1": 1, "2": 2, "3": 3}.get(arguments["zero-stage"])
    if "use-megatron-fsdp" in arguments or "use-custom-fsdp" in arguments:
        return _STAGES.get(arguments.get("data-parallel-sharding-strategy", "no_shard"))
    return int("use-distributed-optimizer" in arguments)


def recompute_setting(arguments: Arguments) -> tuple[str, tuple[str, ...]]:
    """Recompute granularity (none, selective or full), and the modules of a selective one."""
    older = (
        "full"
        if "checkpoint-activations" in arguments
        else "selective"
        if "recompute-activations" in arguments
        else "none"
    )
    granularity = arguments.get("recompute-granularity", older)
    modules = re.findall(r"[a-z_]+", arguments.get("recompute-modules", "core_attn"))
    return granularity, tuple(modules) if granularity == "selective" else ()
