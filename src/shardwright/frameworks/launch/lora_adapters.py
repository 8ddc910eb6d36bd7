"""Low-rank adapters of a launch: their rank and the products that they stand beside."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.settings.value_forms import count
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.model.trained import LINEAR
from shardwright.runtime.arguments import Arguments

EVERY: Final = frozenset({"all", "all-linear", "all_linear", "true"})
"""Words for the products of all layers."""
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
"""Product of a layer here -> its names in frameworks."""
_OWN: Final = {name: product for product, names in _PARTS.items() for name in names}
_TOGETHER: Final = {
    "qkv": (
        frozenset({"q_proj", "k_proj", "v_proj"}),
        frozenset({"wq", "wk", "wv"}),
        frozenset({"wq", "wkv"}),
    ),
    "up": (frozenset({"gate_proj", "up_proj"}), frozenset({"w1", "w3"})),
}
"""Products that are several in a framework, and all of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """What is trained, as `model.trained.parse_training` reads it (empty = all of the model), and
    notes.
    """

    train: str = ""
    notes: tuple[str, ...] = ()


def adapters_of(said: Arguments, model: Model) -> Adapters:
    """The adapters of canonical settings ``lora-rank`` and ``lora-target``; none where there is no
    rank.

    Raises:
        DataError: the rank is no number, or a target is not known here.
    """
    rank = count(said, "lora-rank")
    if not rank:
        return Adapters()
    targets = [
        word.strip(" '\"[]") for word in said.get("lora-target", "all").replace(",", " ").split()
    ]
    targets = [word for word in targets if word]
    if not targets or EVERY & set(targets):
        return Adapters(train=f"lora:r{rank}")
    names = {one.rpartition(".")[2] for one in targets}
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
        and not _is_whole(names, product)
    )
    if set(products) == _PARTS.keys():
        return Adapters(train=f"lora:r{rank}", notes=notes)
    known = {
        operator.name
        for block in model.blocks
        for operator in block.operators
        if operator.kind in LINEAR
    }
    here = sorted(
        one
        for one in known
        if any(one == product or one.endswith(f".{product}") for product in products)
    )
    if not here:
        raise DataError(
            f"MODEL has no product that {', '.join(sorted(names))[:60]} is",
            hint="the MODEL of the launch",
        )
    return Adapters(train=f"lora:r{rank}:{','.join(here)}", notes=notes)


def _is_whole(names: set[str], product: str) -> bool:
    """Whether a name of a framework is the whole product already."""
    parts = {name for group in _TOGETHER[product] for name in group}
    return any(_OWN[name] == product and name not in parts for name in names)
