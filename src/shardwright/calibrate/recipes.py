"""Which of Megatron-Bridge's performance recipes a published row ran: by release, model, accelerator and number format.

Read off the recipe files of each release (links in `runtime.megatron_bridge`; Qwen3-235B on B300 in 26.04.01: pull
request 3490 and issue 3399). Dense models run on the runtime of their source.
"""

from __future__ import annotations

from typing import Final

from shardwright.calibrate.measurements import Measurement

_RACK: Final = ("gb200", "gb300")
_BLACKWELL: Final = ("b200", "b300", *_RACK)
_HOPPER: Final = ("h100-80gb",)
_ANY: Final = (*_BLACKWELL, *_HOPPER)
_SMALL: Final = ("qwen3_30b", "qwen3-30b")
_LARGE: Final = ("qwen3_235b", "qwen3-235b")
_DEEPSEEK: Final = ("deepseekv3",)
_EXPERTS: Final = (*_SMALL, *_LARGE, *_DEEPSEEK)

_DEEPSEEK_LAYERS: Final = 61
_LAST_STAGE: Final = {4: 13, 8: 5, 16: 1}

# (start of the row's name or word in it, models, accelerators, runtime without its prefix); the first that fits
_RECIPES: Final = (
    ("overlap off", _SMALL, _HOPPER, "router"),
    ("overlap on", _SMALL, _HOPPER, "router-overlap"),
    ("canonical recipe", _SMALL, _HOPPER, "router-overlap"),
    ("26.08", _DEEPSEEK, ("gb300",), "graphed-kept"),
    ("26.06", _DEEPSEEK, ("gb300",), "graphed-kept"),
    ("26.08", _DEEPSEEK, ("gb200",), "graphed-sixteen"),
    ("26.06", _DEEPSEEK, ("gb200",), "graphed-sixteen"),
    ("26.08", _EXPERTS, _BLACKWELL, "graphed"),
    ("26.06", _EXPERTS, _BLACKWELL, "graphed"),
    ("26.0", _LARGE, _RACK, "scoped"),
    ("26.02", _LARGE, ("b300", *_HOPPER), "alltoall-overlap"),
    ("26.0", _LARGE, _HOPPER, "alltoall-overlap"),
    ("26.04.01", _LARGE, ("b300",), "flex"),
    ("26.0", _LARGE, ("b200", "b300"), "alltoall"),
    ("26.0", _SMALL, _BLACKWELL, "router"),
    ("26.02", _SMALL, _HOPPER, "alltoall-overlap"),
    ("26.0", _SMALL, _HOPPER, "flex"),
    ("26.0", _DEEPSEEK, ("gb200",), "scoped"),
    ("26.04.01", _DEEPSEEK, ("b200",), "scoped-overlap"),
    ("26.0", _DEEPSEEK, _ANY, "flex"),
    ("25.11", _SMALL, _BLACKWELL, "scoped-alltoall"),
    ("25.11", _LARGE, _RACK, "scoped"),
    ("25.11", (*_LARGE, *_SMALL), _ANY, "alltoall-overlap"),
    ("25.11", _DEEPSEEK, ("b200",), "alltoall"),
    ("25.11", _DEEPSEEK, ("gb200",), "router"),
    ("25.11", _DEEPSEEK, ("gb300",), "scoped-kept"),
    ("25.09", _SMALL, _BLACKWELL, "dropped"),
    ("25.09", _LARGE, ("gb200",), "dropped"),
    ("25.09", _DEEPSEEK, _HOPPER, "flex-overlap"),
    ("25.09", _EXPERTS, _ANY, "dropped-eager"),
)


def bridge_runtime(row: Measurement) -> str:
    """Name of the runtime of a mixture-of-experts row; empty for a dense model or an unknown release."""
    model, gpu, where = row.model_name.lower(), row.gpu.lower(), row.table_or_row.lower()
    for word, models, gpus, name in _RECIPES:
        if word in where and model.startswith(models) and gpu in gpus:
            return f"megatron-bridge-{name}"
    return ""


def recipe_layers(row: Measurement, *, pp: int) -> list[int] | None:
    """Layers of each stage where Megatron-Bridge lists them for one chunk a rank; None elsewhere (`strategy.chunks` has the other layouts).

    DeepSeek-V3's 61 layers: 16 ranks 15 x 4 + 1, 8 ranks 7 x 8 + 5, 4 ranks 3 x 16 + 13; the module that predicts further and both heads
    are on the last. Source: layout_map of recipes/deepseek/deepseek_v3.py.
    """
    if row.source_id != "mbridge" or not row.model_name.lower().startswith(_DEEPSEEK) or (row.vpp or 1) > 1:
        return None
    last = _LAST_STAGE.get(pp)
    return [*((_DEEPSEEK_LAYERS - last) // (pp - 1),) * (pp - 1), last] if last and row.layers == _DEEPSEEK_LAYERS else None
