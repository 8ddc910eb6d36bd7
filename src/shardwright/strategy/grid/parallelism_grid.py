"""The grid: parallelism degrees along a few axes, the short form of most plans."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Options
from shardwright.strategy.rule_violations import GridRule

AXES = ("tp", "cp", "ep", "dp", "pp")
MAX_DEGREE = 2**31
_SCHEDULE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


class Recompute(StrEnum):
    """Activation recomputation in the backward pass: none, the attention core, or whole layers."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


FIELD_RULES: Final = (
    GridRule(
        rule="grid.degree",
        holds=lambda g, _: g.cp % g.ulysses == 0,
        message=lambda g, _: (
            f"cp = ring x ulysses, but ulysses {g.ulysses} does not divide cp {g.cp}"
        ),
    ),
    GridRule(
        rule="grid.recompute",
        holds=lambda g, _: (g.recompute_layers == 0) | (g.recompute == "full"),
        message=lambda g, _: "a number of recomputed layers needs recompute=full",
    ),
    GridRule(
        rule="grid.host",
        holds=lambda g, _: (g.host == 0) | (g.recompute == "none"),
        message=lambda g, _: (
            "layers in host memory (host=) are not recomputed: they need recompute=none"
        ),
    ),
)
"""Rules on the fields of a grid alone, which its constructor checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A parallelism strategy as one degree per axis (tp, cp, ep, dp, pp), with memory options.

    It also has the pipeline schedule and the order of the axes.

    Args:
        tp: tensor parallel degree (split on t).
        sp: sequence parallelism: the residual stream is split on s over the tensor parallel group.
        cp: context parallel degree, ring x ulysses.
        ulysses: part of the context parallel degree that exchanges heads for positions.
        gather: the ring part all-gathers keys instead of passing them round.
        ep: expert parallel degree, folded over tp x cp x dp.
        etp: tensor parallel degree inside an expert.
        dp: data parallel degree.
        pp: pipeline devices.
        vpp: chunks a device.
        microbatch: samples of one microbatch on one replica (Megatron's mbs).
        zero: ZeRO stage 0-3.
        shard: members of a sharding group, 0 = all of dp x cp (hybrid sharding when smaller).
        recompute: none, selective, full.
        recompute_layers: layers of each chunk recomputed in full (0 = all, with `full`).
        host: number of layers, the first of each chunk, whose activations are kept in host memory.
        offload: percent of the optimizer's state and step on the host.
        schedule: registry name.
        first, last: layers of the first and last stage (0 = by the rule of `chunk_layers`).
        layers: layers of every chunk, in order (empty = by the rule of `chunk_layers`).
        slices: token slices of every sequence, of equal length, for schedules that order slices.
        order: axes from innermost to outermost (decides which groups share a node).
        options: runtime options set by this strategy (`runtime.list_and_set_runtime_options`), in
            the order of the vocabulary.
    """

    tp: int = 1
    sp: bool = False
    cp: int = 1
    ulysses: int = 1
    gather: bool = False
    ep: int = 1
    etp: int = 1
    dp: int = 1
    pp: int = 1
    vpp: int = 1
    microbatch: int = 1
    zero: int = 0
    shard: int = 0
    recompute: Recompute = Recompute.NONE
    recompute_layers: int = 0
    host: int = 0
    offload: int = 0
    schedule: str = "1f1b"
    first: int = 0
    last: int = 0
    layers: tuple[int, ...] = ()
    slices: int = 1
    order: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")
    options: Options = ()

    def __post_init__(self) -> None:
        degrees = (
            self.tp,
            self.cp,
            self.ulysses,
            self.ep,
            self.etp,
            self.dp,
            self.pp,
            self.vpp,
            self.microbatch,
            self.slices,
        )
        if min(degrees) < 1 or max(degrees) > MAX_DEGREE:
            raise StrategyError(
                f"a degree of the grid is not in 1..{MAX_DEGREE}: {degrees}", rule="grid.degree"
            )
        counts = (self.shard, self.recompute_layers, self.host, self.first, self.last)
        if (
            min(counts) < 0
            or max(counts) > MAX_DEGREE
            or not 0 <= self.zero <= 3
            or not 0 <= self.offload <= 100
        ):
            raise StrategyError(
                f"out of range: shard {self.shard}, recompute layers {self.recompute_layers}, host"
                f" {self.host}, first {self.first}, last {self.last}, zero {self.zero} (0..3) or"
                f" offload {self.offload} (0..100)",
                rule="grid.degree",
            )
        for rule in FIELD_RULES:
            if not rule.holds(self, None):
                raise StrategyError(rule.message(self, None), rule=rule.rule)
        if self.layers and (
            len(self.layers) != self.pp * self.vpp
            or min(self.layers) < 0
            or min(self.layers[1:-1], default=1) < 1
            or self.first
            or self.last
        ):
            raise StrategyError(
                f"layers: {len(self.layers)} numbers for pp {self.pp} x vpp {self.vpp} chunks",
                hint="a positive number for each chunk, without first and last",
                rule="grid.layers",
            )
        if not _SCHEDULE.fullmatch(self.schedule):
            raise StrategyError(
                f"schedule {self.schedule[:40]!r} is not a name",
                hint="such as 1f1b",
                rule="grid.schedule",
            )
        if sorted(self.order) != sorted(AXES):
            raise StrategyError(
                f"order {'-'.join(self.order)} is not a permutation of {'-'.join(AXES)}",
                rule="grid.order",
            )

    @property
    def devices(self) -> int:
        """Number of devices, tp x cp x dp x pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def ring(self) -> int:
        """Degree of the part of context parallelism that passes (or gathers) keys: cp / ulysses."""
        return self.cp // self.ulysses

    @property
    def edp(self) -> int:
        """Copies of each expert in a pipeline stage: tp x cp x dp / (ep x etp), rounded down."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    def strides(self) -> dict[str, int]:
        """Distance in devices between neighbours along tp, cp, dp and pp, by the axes' order."""
        degrees = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}
        stride, strides = 1, {}
        for axis in self.order:
            if axis in degrees:
                strides[axis] = stride
                stride *= degrees[axis]
        return strides
