"""A block: named operators in order, the unit that a model repeats."""

from __future__ import annotations

from dataclasses import field

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Mask, Operator, OperatorClass
from shardwright.model.ir.tensor_dims import Dim

INPUT = "input"
MEMORY = "memory"
TEXT = "text"
TEACHER = "teacher"
"""Sequence name of the text as input of a frozen teacher (`model.add_frozen_teacher_to_model`)."""
_WORDS = frozenset({OperatorClass.EMBED, OperatorClass.HEAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Named operators in topological order; the last operator's output is the block's output.

    Args:
        name: unique in the model (``layer``, ``moe``, ``mamba``, ``embed``, ``head``).
        sequence: the job's sequence that it runs over (``text``, ``encoder``, ``image``,
            ``teacher``); see `job`.
        memory: sequence that ``memory`` inputs come from (cross-attention); empty if none.
        constant: inputs among ``input`` and ``memory`` with no trained parameter before them, so
            that they need no gradient; see `model.inputs_without_gradient`.
        beside: it is not on the path from the first block to the last: a pipeline keeps it with
            the next layer.
        has_head: True if the block computes logits; found from the operators.
    """

    name: str
    operators: tuple[Operator, ...]
    sequence: str = TEXT
    memory: str = ""
    constant: tuple[str, ...] = ()
    beside: bool = field(default=False, repr=False)
    has_head: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen = {INPUT, MEMORY}
        for operator in self.operators:
            for name in (*operator.inputs, *operator.keeps):
                if name not in seen and name != operator.name:
                    raise ValueError(
                        f"block {self.name}: {operator.name} refers to {name}, which is not"
                        " produced before it"
                    )
            if operator.name in seen:
                raise ValueError(f"block {self.name}: two operators are named {operator.name}")
            seen.add(operator.name)
        has_head = OperatorClass.HEAD in [operator.klass for operator in self.operators]
        object.__setattr__(self, "has_head", has_head)

    def __hash__(self) -> int:
        # Cheap and lawful: equal blocks have equal names. Blocks are keys of caches that look up
        # the same objects again and again.
        return hash((self.name, len(self.operators)))

    @property
    def is_of_teacher(self) -> bool:
        """True if the block belongs to a frozen teacher beside the model."""
        return self.sequence == TEACHER

    @property
    def has_vocabulary(self) -> bool:
        """True if the block is an embedding or a head."""
        return not _WORDS.isdisjoint([o.klass for o in self.operators])

    @property
    def is_layer(self) -> bool:
        """True if pipelines distribute the block: not an embedding, head, teacher or side branch.

        Recompute applies to such blocks.
        """
        return not self.has_vocabulary and not self.is_of_teacher and not self.beside

    @property
    def output_width(self) -> int:
        """Elements a token of the last hidden state that the block writes; 0 if it writes none.

        A loss is not a hidden state.
        """
        return next(
            (
                e.size
                for o in reversed(self.operators)
                for e in o.writes
                if e.dim is Dim.HIDDEN and e.size > 1
            ),
            0,
        )

    @property
    def is_causal(self) -> bool:
        """True if no text position depends on a later one or on another sequence.

        Slices of tokens can then follow one another.
        """
        shapes = [o.attention for o in self.operators if o.attention is not None]
        return (
            self.sequence == TEXT
            and not self.memory
            and not any(shape.cross or shape.mask is Mask.FULL for shape in shapes)
        )

    @property
    def num_parameters(self) -> int:
        """Elements stored by one copy of the block (tied weights count at their owner)."""
        return sum(
            p.size for o in self.operators for p in o.parameters if p.counted and not p.tied_to
        )
