"""Rules for the place of a parameter in a Hugging Face checkpoint, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from shardwright.lazy_dataclass import dataclass

Rules = Mapping[str, "Rule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The place of a parameter in a checkpoint.

    Args:
        tensor: its name; ``{layer}`` is the number of the layer, ``{expert}`` of the expert (then a
            tensor holds one expert).
        turned: the tensor is (out, in), ours (in, out), of every expert where it has all.
        middle: the tensor has a dim of one element behind the first (weights of a convolution).
        folded: its last dims are channels, rows and columns of pixels, ours one
            (`ImageInput.patch`).
        gridded: its first dims are rows and columns of a table of positions, or axes and rows, ours
            one (`Settings.stretched`).
        beside: our parameters that share the tensor, one after another in its output dim, this one
            among them; () = it is alone.
        grouped: those stand in turns: for each head (or group of query heads, or single element) a
            share of each.
        heads: parameter whose heads those turns are, where it is none of them.
        rotary: parameter whose width is the rotary part of a head, its last elements, stored as
            pairs (even, odd) but where `Settings.rope_pairs` is false; ours are halves. Empty:
            stored as ours.
        pairs: the turned elements of every head, its first ones, are stored so.
        either: some files have it with its last two dims in the other order, which their shape
            says; where both are alike none is.
        add: our value less the stored one.
        alone: its name where its operator has no second parameter of the kind (a feed-forward
            without a gate); empty: the same.
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
class Stack:
    """The place of a run's parameters: `stem`, with ``{layer}`` for the number of the layer in it,
    followed by a rule's tensor.
    """

    rules: Rules
    stem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models.

    Args:
        outer: parameters of embedding and head, by our names.
        layers: of a layer; the tensor's name goes behind `stem`.
        predictors: of a module that predicts further tokens, where it differs from a layer; modules
            are numbered behind the layers.
        base: beginning of names that some files leave out, or write as `instead`.
        others: more beginnings, and what some files have in their place.
        stacks: of runs that are neither layers of one decoder nor around them, by what stands
            before a dot in their names.
    """

    name: str
    outer: Rules
    layers: Rules = field(default_factory=dict)
    stem: str = "model.layers.{layer}."
    predictors: Rules = field(default_factory=dict)
    base: str = ""
    instead: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    stacks: Mapping[str, Stack] = field(default_factory=dict)

    def other(self, tensor: str) -> str:
        """The name that some files have a tensor under."""
        other = {self.base: self.instead, **self.others}
        return next(
            (
                new + tensor.removeprefix(old)
                for old, new in other.items()
                if old and tensor.startswith(old)
            ),
            tensor,
        )


def same_tensor(**names: str) -> dict[str, Rule]:
    """Parameters that are tensors as they stand; two underscores are a dot."""
    return {ours.replace("__", "."): Rule(tensor=tensor) for ours, tensor in names.items()}


def linear(ours: str, tensor: str) -> dict[str, Rule]:
    """Weight and bias of a projection; a missing bias is never asked for."""
    operator, _, number = ours.partition(":")
    suffix = f".{number}" if number else ""
    return {
        f"{operator}.weight{suffix}": Rule(tensor=f"{tensor}.weight", turned=True),
        f"{operator}.bias{suffix}": Rule(tensor=f"{tensor}.bias"),
    }


def fused(
    operator: str, tensor: str, *, parts: int, grouped: bool = False, turned: bool = True
) -> dict[str, Rule]:
    """A projection with several outputs that is one tensor."""
    found: dict[str, Rule] = {}
    for kind in ("weight", "bias"):
        names = tuple(f"{operator}.{kind}{f'.{i}' if i else ''}" for i in range(parts))
        found |= {
            name: Rule(
                tensor=f"{tensor}.{kind}",
                turned=turned and kind == "weight",
                beside=names,
                grouped=grouped,
            )
            for name in names
        }
    return found


def norm(ours: str, tensor: str) -> dict[str, Rule]:
    """Gain and bias of a norm."""
    return {f"{ours}.{kind}": Rule(tensor=f"{tensor}.{kind}") for kind in ("weight", "bias")}


def experts_of(tensors: tuple[str, str, str]) -> dict[str, Rule]:
    """Gate, up and down of the experts."""
    names = ("experts.up.weight", "experts.up.weight.1", "experts.down.weight")
    return {
        ours: Rule(tensor=f"{tensor}.weight", turned=True)
        for ours, tensor in zip(names, tensors, strict=True)
    }


def of_all_experts(up: str, down: str) -> dict[str, Rule]:
    """Gate and up of all experts, one behind the other, and down: a tensor each, (experts, out,
    in).
    """
    return {
        **{
            name: replace(rule, turned=True)
            for name, rule in side_by_side("experts.up.weight", up).items()
        },
        "experts.down.weight": Rule(tensor=down, turned=True),
    }


def stored_less_one(rules: Rules) -> dict[str, Rule]:
    """Gains that are stored less one."""
    return {
        name: replace(rule, add=1.0) if "norm" in name and name.endswith("weight") else rule
        for name, rule in rules.items()
    }


def side_by_side(name: str, tensor: str, *, turned: bool = False) -> dict[str, Rule]:
    """Two parameters that are one tensor, the second's elements behind the first's."""
    both = (name, f"{name}.1")
    return {one: Rule(tensor=tensor, beside=both, turned=turned) for one in both}


def in_either_order(rules: Rules) -> dict[str, Rule]:
    """Tensors whose last two dims some files have in the other order."""
    return {name: replace(rule, either=True) for name, rule in rules.items()}


def interleaved(name: str, tensor: str) -> dict[str, Rule]:
    """Two parameters whose elements stand in turns."""
    both = (name, f"{name}.1")
    return {one: Rule(tensor=tensor, beside=both, grouped=True) for one in both}


def in_heads(names: tuple[str, ...], tensor: str, *, heads: str = "") -> dict[str, Rule]:
    """Projections that are one tensor, for each head a share of each; `heads`: of another
    parameter.
    """
    return {
        name: Rule(tensor=f"{tensor}.weight", turned=True, beside=names, grouped=True, heads=heads)
        for name in names
    }


def renamed(rules: Rules, stem: str, other: str) -> dict[str, Rule]:
    """The tensors of `stem` under another one."""
    return {
        name: replace(rule, tensor=rule.tensor.replace(stem, other, 1))
        for name, rule in rules.items()
    }


def with_prefix(prefix: str, rules: Rules) -> dict[str, Rule]:
    """The same tensors of parameters whose names begin so."""

    def named(name: str) -> str:
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


def in_rotary_pairs(rules: Rules) -> dict[str, Rule]:
    """Queries and keys whose turned elements stand as pairs."""
    turned = {f"qkv.{kind}{which}" for kind in ("weight", "bias") for which in ("", ".1")}
    return {
        name: replace(rule, pairs=True) if name in turned else rule for name, rule in rules.items()
    }


def shared_experts(tensor: str) -> dict[str, Rule]:
    """Gate, up and down of experts that every token visits."""
    return {
        **linear("shared.up", f"{tensor}.gate_proj"),
        **linear("shared.up:1", f"{tensor}.up_proj"),
        **linear("shared.down", f"{tensor}.down_proj"),
    }


def convolved(parts: int) -> dict[str, Rule]:
    """A depthwise convolution of so many parts that is one tensor."""
    rules = fused("conv", "mixer.conv1d", parts=parts, turned=False)
    return {
        name: replace(rule, middle=rule.tensor.endswith("weight")) for name, rule in rules.items()
    }
