"""Rules for the name and layout of a parameter in a Hugging Face checkpoint, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from shardwright.lazily_compiled_dataclass import dataclass

Rules = Mapping[str, "NamingRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingRule:
    """Name and layout of a parameter in a Hugging Face checkpoint.

    Args:
        tensor: name of the tensor; ``{layer}`` is the number of the layer, ``{expert}`` that of the
            expert (then a tensor holds one expert).
        turned: the tensor is (out, in), our parameter (in, out); for every expert if it holds all.
        middle: the tensor has a dim of one element after the first (weights of a convolution).
        folded: its last dims are channels, rows and columns of pixels, which are one dim of our
            parameter (`ImageInput.patch`).
        gridded: its first dims are rows and columns of a table of positions, or axes and rows,
            which are one dim of our parameter (`Settings.stretched`).
        beside: our parameters that share the tensor, one after another in its output dim, this
            parameter included; () = it has its own tensor.
        grouped: these parameters are interleaved: for each head (or group of query heads, or single
            element) a share of each.
        heads: parameter whose heads these are, if it is none of `beside`.
        rotary: parameter whose width is the rotary part of a head, its last elements, stored as
            pairs (even, odd) unless `Settings.rope_pairs` is false; our parameter has halves.
            Empty: stored as in our parameter.
        pairs: the rotated elements of every head, its first ones, are stored as pairs.
        either: some files have its last two dims in the other order, which the shape shows; equal
            dims count as the usual order.
        add: our value minus the stored value.
        alone: its name if its operator has no second parameter of the kind (a feed-forward without
            a gate); empty: the same name.
    """

    tensor: str
    turned: bool = False
    middle: bool = False
    folded: bool = False
    gridded: bool = False
    beside: tuple[str, ...] = ()
    grouped: bool = False
    heads: str = ""
    rotary: str = ""
    pairs: bool = False
    either: bool = False
    add: float = 0.0
    alone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStackNames:
    """Naming rules of a stack of layers: `stem` (with ``{layer}``) before a rule's tensor name."""

    rules: Rules
    stem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyNames:
    """Naming rules of a model family's parameters in Hugging Face checkpoints.

    Args:
        outer: rules of embedding and head, by our names.
        layers: rules of a layer; the tensor's name follows `stem`.
        predictors: rules of a module that predicts further tokens, where they differ from a
            layer's; modules are numbered after the layers.
        base: prefix of names that some files omit, or write as `instead`.
        others: more prefixes, and the prefixes that some files have instead.
        stacks: rules of runs other than a decoder's layers, embedding and head, by the part of the
            run's name before a dot.
    """

    name: str
    outer: Rules
    layers: Rules = field(default_factory=dict)
    stem: str = "model.layers.{layer}."
    predictors: Rules = field(default_factory=dict)
    base: str = ""
    instead: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    stacks: Mapping[str, LayerStackNames] = field(default_factory=dict)

    def alternative_name(self, tensor: str) -> str:
        """Tensor name, its prefix replaced by that of the family's other files; else unchanged."""
        prefixes = {self.base: self.instead, **self.others}
        return next(
            (
                new + tensor.removeprefix(old)
                for old, new in prefixes.items()
                if old and tensor.startswith(old)
            ),
            tensor,
        )


def same_tensor(**names: str) -> dict[str, NamingRule]:
    """Rules (our parameter -> tensor stored unchanged); ``a__b`` stands for ``a.b``."""
    return {ours.replace("__", "."): NamingRule(tensor=tensor) for ours, tensor in names.items()}


def linear_names(ours: str, tensor: str) -> dict[str, NamingRule]:
    """Rules of a projection `ours` (``qkv:1``): ``tensor.weight`` transposed, ``tensor.bias``."""
    operator, _, number = ours.partition(":")
    suffix = f".{number}" if number else ""
    return {
        f"{operator}.weight{suffix}": NamingRule(tensor=f"{tensor}.weight", turned=True),
        f"{operator}.bias{suffix}": NamingRule(tensor=f"{tensor}.bias"),
    }


def fused_projection(
    operator: str, tensor: str, *, parts: int, grouped: bool = False, transposed: bool = True
) -> dict[str, NamingRule]:
    """Rules of `parts` outputs (q, k, v) in one tensor: concatenated, or by head if `grouped`."""
    rules: dict[str, NamingRule] = {}
    for kind in ("weight", "bias"):
        names = tuple(f"{operator}.{kind}{f'.{i}' if i else ''}" for i in range(parts))
        rules |= {
            name: NamingRule(
                tensor=f"{tensor}.{kind}",
                turned=transposed and kind == "weight",
                beside=names,
                grouped=grouped,
            )
            for name in names
        }
    return rules


def norm_names(ours: str, tensor: str) -> dict[str, NamingRule]:
    """Rules of a norm's gain and bias: ``.weight`` and ``.bias`` after `ours` and `tensor`."""
    return {f"{ours}.{kind}": NamingRule(tensor=f"{tensor}.{kind}") for kind in ("weight", "bias")}


def expert_names(tensors: tuple[str, str, str]) -> dict[str, NamingRule]:
    """Rules of experts from names (gate, up, down) without ``.weight``, one tensor an expert."""
    names = ("experts.up.weight", "experts.up.weight.1", "experts.down.weight")
    return {
        ours: NamingRule(tensor=f"{tensor}.weight", turned=True)
        for ours, tensor in zip(names, tensors, strict=True)
    }


def stacked_expert_names(up: str, down: str) -> dict[str, NamingRule]:
    """Rules of experts as (experts, out, in): gate and up in one tensor, down in another."""
    return {
        **{
            name: replace(rule, turned=True)
            for name, rule in side_by_side("experts.up.weight", up).items()
        },
        "experts.down.weight": NamingRule(tensor=down, turned=True),
    }


def stored_less_one(rules: Rules) -> dict[str, NamingRule]:
    """The rules, changed so that gains of norms are stored minus one; others stay as they are."""
    return {
        name: replace(rule, add=1.0) if "norm" in name and name.endswith("weight") else rule
        for name, rule in rules.items()
    }


def side_by_side(name: str, tensor: str, *, transposed: bool = False) -> dict[str, NamingRule]:
    """Rules of parameters `name` and ``name.1``, concatenated in one tensor in this order."""
    both = (name, f"{name}.1")
    return {ours: NamingRule(tensor=tensor, beside=both, turned=transposed) for ours in both}


def in_either_order(rules: Rules) -> dict[str, NamingRule]:
    """The rules, for tensors that some files store with their last two dims swapped."""
    return {name: replace(rule, either=True) for name, rule in rules.items()}


def interleaved(name: str, tensor: str) -> dict[str, NamingRule]:
    """Rules of `name` and ``name.1``, whose output elements alternate in one tensor."""
    both = (name, f"{name}.1")
    return {parameter: NamingRule(tensor=tensor, beside=both, grouped=True) for parameter in both}


def interleaved_by_head(
    names: tuple[str, ...], tensor: str, *, heads: str = ""
) -> dict[str, NamingRule]:
    """Rules of projections in one tensor: of each head, its part of every projection in turn.

    `heads`: parameter whose heads these are, if it is none of them.
    """
    return {
        name: NamingRule(
            tensor=f"{tensor}.weight", turned=True, beside=names, grouped=True, heads=heads
        )
        for name in names
    }


def renamed(rules: Rules, stem: str, new_stem: str) -> dict[str, NamingRule]:
    """The rules, with `stem` replaced by `new_stem` once in each tensor name."""
    return {
        name: replace(rule, tensor=rule.tensor.replace(stem, new_stem, 1))
        for name, rule in rules.items()
    }


def with_prefix(prefix: str, rules: Rules) -> dict[str, NamingRule]:
    """The rules, with `prefix` before the names of our parameters."""

    def named(name: str) -> str:
        """Our parameter's name with the prefix; an empty name stays empty."""
        return f"{prefix}{name}" if name else ""

    return {
        named(name): replace(
            rule,
            beside=tuple(map(named, rule.beside)),
            heads=named(rule.heads),
            rotary=named(rule.rotary),
        )
        for name, rule in rules.items()
    }


def in_rotary_pairs(rules: Rules) -> dict[str, NamingRule]:
    """The rules, q and k stored with rotary elements as (even, odd) pairs, not as halves."""
    turned = {f"qkv.{kind}{which}" for kind in ("weight", "bias") for which in ("", ".1")}
    return {
        name: replace(rule, pairs=True) if name in turned else rule for name, rule in rules.items()
    }


def shared_experts(tensor: str) -> dict[str, NamingRule]:
    """Rules of gate, up and down of the shared expert, whose tensor names begin with `tensor`."""
    return {
        **linear_names("shared.up", f"{tensor}.gate_proj"),
        **linear_names("shared.up:1", f"{tensor}.up_proj"),
        **linear_names("shared.down", f"{tensor}.down_proj"),
    }


def convolution_names(parts: int) -> dict[str, NamingRule]:
    """Rules of a depthwise convolution whose `parts` are joined in tensor ``mixer.conv1d``."""
    rules = fused_projection("conv", "mixer.conv1d", parts=parts, transposed=False)
    return {
        name: replace(rule, middle=rule.tensor.endswith("weight")) for name, rule in rules.items()
    }
