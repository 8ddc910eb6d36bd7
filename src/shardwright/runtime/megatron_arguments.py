"""What arguments of Megatron-LM say of a strategy, each in plain values; what is not among them is
at its default.

Source of names and defaults: Megatron-LM, megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.arguments import Arguments

MAX_DIGITS: Final = 12
MAX_STAGES: Final = 4096
MAX_LAYOUT: Final = 10_000
"""Characters of a layout that is written out."""
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
"""Of arguments whose default is another than none."""
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
"""Word of ``--recompute-modules`` -> option of a runtime; ``core_attn`` is ``recompute=selective``
of a grid."""
_STAGES: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``--data-parallel-sharding-strategy`` of Megatron-FSDP -> stage of ZeRO."""
_REPEATED: Final = re.compile(r"\(([A-Za-z|]*)\)\*([0-9]{1,4})|([A-Za-z|])\*([0-9]{1,4})")


def whole(text: str) -> int | None:
    """The number; None where it is none, or more than anybody has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def layout_layers(text: str) -> tuple[int, ...]:
    """Layers (``t``) of each chunk of a layout: ``Et*3|(tt|)*6mL`` is 3, six times 2, and 0 beside
    what predicts further and the loss.

    Raises:
        RuntimeModelError: it has other letters, or is too long written out.
    """
    full = text.replace(",", "").replace("\\", "").strip()
    while (found := _REPEATED.search(full)) is not None:
        body, times = (found[1], int(found[2])) if found[2] else (found[3], int(found[4]))
        if len(full) + len(body) * times > MAX_LAYOUT:
            break
        full = full[: found.start()] + body * times + full[found.end() :]
    if set(full) - set("EtmL|"):
        raise RuntimeModelError(
            f"launch: layout {text[:40]!r} is not known here", hint="E, t, m, L, | and repetitions"
        )
    return tuple(chunk.count("t") for chunk in full.split("|"))


def pipeline_chunks(
    arguments: Arguments, *, layers: int, pp: int, vpp: int = 1
) -> tuple[int, tuple[int, ...]]:
    """Chunks a rank, and layers of each chunk, or of each stage, by any of the arguments that say
    them; empty = evenly.

    Args:
        layers: of the decoder, 0 = not known.
        vpp: where it is said in so many words.

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
    each = whole(arguments.get("num-layers-per-virtual-pipeline-stage", ""))
    ends = [
        int(f"account-for-{end}-in-pipeline-split" in arguments) for end in ("embedding", "loss")
    ]
    counted = layers + sum(ends)
    if each and layers:
        vpp = max(1, counted // (pp * each))
    if sum(ends) and layers and MAX_STAGES >= pp * vpp > 1 and counted % (pp * vpp) == 0:
        size = counted // (pp * vpp)
        return vpp, (size - ends[0], *(size,) * (pp * vpp - 2), size - ends[1])
    first, last = (
        whole(arguments.get(f"decoder-{end}-pipeline-num-layers", "")) for end in ("first", "last")
    )
    if (first or last) and layers and MAX_STAGES >= pp > 1 and vpp == 1:
        return vpp, _between(layers, pp, first, last)
    return vpp, ()


def _between(layers: int, pp: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Layers of each stage where those of the ends are said: the rest evenly."""
    free = pp - (first is not None) - (last is not None)
    each = (layers - (first or 0) - (last or 0)) // max(free, 1)
    return (each if first is None else first, *(each,) * (pp - 2), each if last is None else last)


def number_format(arguments: Arguments) -> str:
    """``bf16``, ``fp16``, ``fp8`` or ``fp4``, in which products are; empty where none is said."""
    base = next((name for name in ("bf16", "fp16") if name in arguments), "")
    return "fp4" if "fp4-format" in arguments else "fp8" if "fp8-format" in arguments else base


def has_dropout(arguments: Arguments) -> bool:
    """Attention or hidden dropout is on; both are by default, which `DEFAULTS` says."""
    given = (arguments.get(name, "") for name in ("attention-dropout", "hidden-dropout"))
    return any(float(text) > 0 for text in given if _is_number(text))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{0,9}(\.[0-9]{0,9})?", text) is not None and text not in ("", ".")


def sharding_stage(arguments: Arguments) -> int | None:
    """The stage of ZeRO; None where a strategy of Megatron-FSDP, or a stage of Megatron-DeepSpeed,
    is not known.
    """
    if "zero-stage" in arguments:
        return {"0": 0, "1": 1, "2": 2, "3": 3}.get(arguments["zero-stage"])
    if "use-megatron-fsdp" in arguments or "use-custom-fsdp" in arguments:
        return _STAGES.get(arguments.get("data-parallel-sharding-strategy", "no_shard"))
    return int("use-distributed-optimizer" in arguments)


def recomputed(arguments: Arguments) -> tuple[str, tuple[str, ...]]:
    """The granularity (``none``, ``selective``, ``full``), and the modules of a selective one."""
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
