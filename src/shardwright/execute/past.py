"""Keys and values of the earlier slices of a microbatch, and the gradients that later slices owe them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.protocol import Gradients, Values


@dataclass(slots=True)
class Past:
    """Of one layer of one microbatch, by operator: keys and values of each slice, in order; gradients of each that are still to come."""

    kept: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)
    owed: dict[str, list[tuple[torch.Tensor, torch.Tensor] | None]] = field(default_factory=dict)

    def longer(self, operator: str, inputs: tuple[Values, ...], *, part: int) -> tuple[Values, ...]:
        """The inputs of a core for slice number `part`, with the keys and values of all slices before. One that runs again is known.

        Raises:
            StrategyError: keys do not come with the queries (rule ``execute.slices``).
        """
        if len(inputs) != 1 or len(inputs[0]) < 3:
            raise StrategyError(f"{operator} cannot be run slice by slice", hint="only self-attention over q, k, v", rule="execute.slices")
        query, key, value, *others = inputs[0]
        slices = self.kept.setdefault(operator, [])
        if len(slices) == part:
            slices.append((key, value))
            self.owed.setdefault(operator, []).append(None)
        keys, values = (torch.cat(parts, dim=1) for parts in zip(*slices[: part + 1], strict=True))
        return ((query, keys, values, *others),)

    def shorter(self, operator: str, backs: tuple[Gradients | None, ...]) -> tuple[Gradients | None, ...]:
        """Gradients of the last slice's keys and values, with what later slices owed it; those of earlier slices are owed to them."""
        back = backs[0]
        assert back is not None
        query, keys, values, *others = back
        assert keys is not None
        assert values is not None
        slices, owed = self.kept[operator], self.owed[operator]
        lengths = [k.shape[1] for k, _ in slices]
        parts = list(zip(keys.split(lengths, dim=1), values.split(lengths, dim=1), strict=True))
        for number, part in enumerate(parts):
            known = owed[number]
            owed[number] = part if known is None else (known[0] + part[0], known[1] + part[1])
        slices.pop()
        last = owed.pop()
        assert last is not None
        return ((query, last[0], last[1], *others), *backs[1:])
