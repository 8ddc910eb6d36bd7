"""A decoder's layers, as targets read sizes and numbers off them."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.model.ir.block import Block
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import AttentionShape, Operator
from shardwright.strategy.grid.facts import layer_runs


@dataclass(frozen=True, slots=True)
class Decoder:
    """The blocks of a decoder's layers, in order, without repetition of what they say."""

    model: Model
    layers: tuple[Block, ...]

    def named(self, name: str) -> tuple[Operator, ...]:
        """The operators of that name, of every block that has one."""
        return tuple(o for block in dict.fromkeys(self.layers) for o in block.operators if o.name == name)

    def one(self, name: str) -> Operator | None:
        """The first operator of that name."""
        return next(iter(self.named(name)), None)

    @property
    def core(self) -> AttentionShape:
        """The shape of attention."""
        found = self.one("core")
        assert found is not None, "layers without attention are refused"
        assert found.attention is not None, "a core has a shape"
        return found.attention


def decoder_of(model: Model) -> Decoder:
    """The layers of a model."""
    return Decoder(model, tuple(model.blocks[run.block] for run in layer_runs(model) for _ in range(run.count)))
