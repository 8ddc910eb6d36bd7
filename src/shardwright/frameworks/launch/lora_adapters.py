"""LoRA adapters of a launch: rank and the GEMMs that have adapters."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.settings.setting_values_from_and_to_text import whole_number
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.freeze_parameters_or_add_lora import LINEAR
from shardwright.model.ir.model_graph import Model

EVERY: Final = frozenset({"all", "all-linear", "all_linear", "true"})
"""Words for the GEMMs of all layers."""
_PARTS: Final = MappingProxyType(
    {
        "qkv": (
            "q_proj",
            "k_proj",
            "v_proj",
            "query_key_value",
            "qkv_proj",
            "linear_qkv",
            "c_attn",
            "wqkv",
            "wq",
            "wk",
            "wv",
            "wkv",
        ),
        "proj": ("o_proj", "output_proj", "linear_proj", "dense", "out_proj", "wo"),
        "up": (
            "gate_proj",
            "up_proj",
            "gate_up_proj",
            "linear_fc1",
            "w1",
            "w3",
            "fc1",
            "dense_h_to_4h",
        ),
        "down": ("down_proj", "linear_fc2", "w2", "fc2", "dense_4h_to_h"),
    }
)
"""GEMM of a layer in our models -> its names in frameworks."""
_OWN: Final = {name: product for product, names in _PARTS.items() for name in names}
_TOGETHER: Final = {
    "qkv": (
        frozenset({"q_proj", "k_proj", "v_proj"}),
        frozenset({"wq", "wk", "wv"}),
        frozenset({"wq", "wkv"}),
    ),
    "up": (frozenset({"gate_proj", "up_proj"}), frozenset({"w1", "w3"})),
}
"""GEMMs that are several in a framework -> sets of names that together are the whole GEMM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Trained parameters of a launch with LoRA, and notes.

    `train` is as `model.freeze_parameters_or_add_lora.parse_training` reads it; empty = all of the
    model.
    """

    train: str = ""
    notes: tuple[str, ...] = ()


def adapters_of(rank: str, targets: str, model: Model) -> Adapters:
    """LoRA adapters by the texts of rank (empty or 0: none) and target GEMMs (empty: all).

    Args:
        rank: text of the rank in a launch file.
        targets: names of GEMMs, or a word for all of them.

    Raises:
        DataError: the rank is no number, or a target is not known here.
    """
    size = whole_number("lora-rank", rank) if rank else 0
    if not size:
        return Adapters()
    stripped = [word.strip(" '\"[]") for word in targets.replace(",", " ").split()]
    words = {word for word in stripped if word}
    if not words or EVERY & words:
        return Adapters(train=f"lora:r{size}")
    names = {word.rpartition(".")[2] for word in words}
    unknown = sorted(names - _OWN.keys())
    if unknown:
        raise DataError(
            f"adapters on {', '.join(unknown)[:60]} are not priced here",
            hint=f"on {', '.join(sorted(_OWN))[:120]}",
        )
    products = tuple(product for product in _PARTS if any(_OWN[name] == product for name in names))
    notes = tuple(
        f"adapters on {', '.join(sorted(name for name in names if _OWN[name] == product))} are"
        f" counted as on the whole {product} product"
        for product in products
        if product in _TOGETHER
        and not any(group <= names for group in _TOGETHER[product])
        and not _has_whole_name(names, product)
    )
    if set(products) == _PARTS.keys():
        return Adapters(train=f"lora:r{size}", notes=notes)
    gemm_names = {
        operator.name
        for block in model.blocks
        for operator in block.operators
        if operator.kind in LINEAR
    }
    here = sorted(
        name
        for name in gemm_names
        if any(name == product or name.endswith(f".{product}") for product in products)
    )
    if not here:
        raise DataError(
            f"MODEL has no product that {', '.join(sorted(names))[:60]} is",
            hint="the MODEL of the launch",
        )
    return Adapters(train=f"lora:r{size}:{','.join(here)}", notes=notes)


def _has_whole_name(names: set[str], product: str) -> bool:
    """True if a name in `names` stands for the whole GEMM `product`, not for a part."""
    parts = {name for group in _TOGETHER[product] for name in group}
    return any(_OWN[name] == product and name not in parts for name in names)
