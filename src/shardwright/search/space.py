"""The space that is searched, as data: axes and their values."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwright.cost.layout import is_layer
from shardwright.errors import UsageError, nearest
from shardwright.program.problem import Problem
from shardwright.strategy.grid_facts import num_layers
from shardwright.strategy.grid_rules import GridFacts

AXES = (
    "tp",
    "cp",
    "pp",
    "order",
    "ep",
    "etp",
    "sp",
    "ulysses",
    "gather",
    "mbs",
    "vpp",
    "schedule",
    "zero",
    "shard",
    "recompute",
    "recompute_layers",
    "offload",
)
"""Axes of the grid space; dp follows from the number of devices."""

Value = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Values of each axis, in the order of AXES.

    `shard` counts members of a sharding group (0 = all holders); `recompute_layers` is used with full recompute (0 = all).
    """

    name: str
    devices: int
    values: tuple[tuple[str, tuple[Value, ...]], ...]

    def of(self, axis: str) -> tuple[Value, ...]:
        """Values of `axis`."""
        return dict(self.values)[axis]

    def text(self) -> str:
        """The space for a person and for the digest."""
        axes = "; ".join(f"{axis} {{{', '.join(map(str, values))}}}" for axis, values in self.values)
        return f"{self.name}: {self.devices} devices; {axes}; dp = devices / (tp cp pp)"

    def digest(self, problem: str) -> str:
        """SHA-256 of the space and the problem's text."""
        return hashlib.sha256(f"{self.text()}\n{problem}".encode()).hexdigest()


def _divisors(number: int, limit: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def _ladder(top: int) -> tuple[int, ...]:
    """A few counts between none and all of `top` layers."""
    return tuple(sorted({max(top * part // 8, 1) for part in (1, 2, 3, 4, 5, 6, 7)})) if top > 1 else ()


def standard_space(problem: Problem, facts: GridFacts) -> Space:
    """What users of the runtime choose from: tp within an island, both orders of dp and pp, ZeRO as the runtime has it."""
    return _space(problem, facts, name="standard", wide=False)


def exhaustive_space(problem: Problem, facts: GridFacts) -> Space:
    """Wider: tp across islands, all orders of the other axes, every number of recomputed layers, gathered context."""
    return _space(problem, facts, name="exhaustive", wide=True)


def _space(problem: Problem, facts: GridFacts, *, name: str, wide: bool) -> Space:
    runtime, devices = problem.runtime, facts.devices
    island = problem.cluster.node.island
    layers = num_layers(problem.model)
    tp = _divisors(devices, min(facts.heads or facts.scan_heads or devices, 64 if wide else island))
    has_context = runtime.context_ring or runtime.context_gather or runtime.context_ulysses
    cp = _divisors(devices, max(facts.seq_len // 1024, 1) if not wide else max(facts.seq_len // 256, 1)) if has_context else (1,)
    cp = tuple(c for c in cp if c <= (16 if not wide else 64))
    scans = any(o.scan is not None for b in problem.model.blocks for o in b.operators)
    chain = all(len(r.inputs) <= 1 for r in problem.model.runs)
    pp = tuple(p for p in _divisors(devices, layers + 2) if p == 1 or chain)
    chunks = tuple(v for v in range(1, layers + 3) if v <= (64 if wide else 16))
    holders = tuple(d for d in _divisors(devices, devices) if d > 1)
    inner = tuple(d for d in holders if d <= (512 if wide else island)) if runtime.hybrid_sharding else ()
    single = sum(is_layer(b) for b in problem.model.blocks) == 1
    redo = (*(tuple(range(1, layers)) if wide else _ladder(layers)), 0) if single else (0,)
    moe = facts.experts > 0 and runtime.expert_parallel
    values: dict[str, tuple[Value, ...]] = {
        "tp": tp,
        "cp": (1,) if scans else cp,
        "pp": pp,
        "order": _orders(wide=wide),
        "ep": _divisors(facts.experts, devices) if moe else (1,),
        "etp": (_divisors(devices, island) if wide else (1,)) if moe else (1,),
        "sp": (0, 1) if runtime.sequence_parallel else (0,),
        "ulysses": cp if runtime.context_ulysses and not scans else (1,),
        "gather": (0, 1) if runtime.context_gather and wide else (0,),
        "mbs": tuple(2**i for i in range(7 if wide else 5)),
        "vpp": chunks,
        "schedule": tuple(s for s in ("gpipe", "1f1b", "interleaved-1f1b") if s in runtime.schedules),
        "zero": runtime.zero_stages,
        "shard": (0, *inner),
        "recompute": ("none", "selective", "full"),
        "recompute_layers": redo,
        "offload": ((0, 50, 100) if wide else (0, 100)) if runtime.optimizer_offload else (0,),
    }
    return Space(name=name, devices=devices, values=tuple((axis, values[axis]) for axis in AXES))


def _orders(*, wide: bool) -> tuple[str, ...]:
    if not wide:
        return ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
    found = []
    for order in itertools.permutations(("cp", "dp", "pp")):
        place = order.index("dp")
        found.append("-".join(("tp", *order[:place], "ep", *order[place:])))
    return tuple(found)


def restricted(space: Space, *, pins: Mapping[str, tuple[str, ...]], excludes: Mapping[str, tuple[str, ...]]) -> Space:
    """`space` with axes pinned to, or without, some values.

    Raises:
        UsageError: unknown axis, or no value is left.
    """
    values = dict(space.values)
    for axis, wanted in pins.items():
        values[_known(axis)] = tuple(_typed(values[axis], word) for word in wanted)
    for axis, unwanted in excludes.items():
        words = set(unwanted)
        values[_known(axis)] = tuple(v for v in values[axis] if str(v) not in words)
        if not values[axis]:
            raise UsageError(f"excluding {axis}={','.join(unwanted)} leaves no value", hint=f"values: {', '.join(map(str, space.of(axis)))}")
    return replace(space, values=tuple((axis, values[axis]) for axis in AXES))


def _known(axis: str) -> str:
    if axis not in AXES:
        raise UsageError(f"unknown axis {axis!r}", hint=nearest(axis, AXES))
    return axis


def _typed(existing: tuple[Value, ...], word: str) -> Value:
    if isinstance(existing[0], str):
        return word
    try:
        return int(word)
    except ValueError:
        raise UsageError(f"{word!r} is not a whole number", hint="for example tp=8") from None
