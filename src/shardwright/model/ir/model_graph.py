"""A model as a DAG of runs of equal blocks."""

from __future__ import annotations

from dataclasses import field

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.checkpoint_number_formats import StoredFormat
from shardwright.model.ir.numerical_constants import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`count` copies of block `block` (index into `Model.blocks`) in a row.

    Args:
        inputs: names of the runs whose outputs it reads; empty = the model's data.
    """

    name: str
    block: int
    count: int
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as a DAG of blocks; repeated blocks are kept once with a count.

    Args:
        blocks: distinct blocks.
        runs: in a topological order.
        name: name that the user wrote, or the catalog's name.
        architecture: the architecture string of its config. Builders leave both empty.
        hidden: width of the residual stream in elements.
        vocab: rows of the embedding as stored.
        max_context: tokens; 0 if unbounded.
        base: the model before parts of it were frozen or given adapters; None = all is trained.
        unread: fields of the configuration that no builder reads and that are not known to be
            harmless. They do not change the model.
        settings: numerical constants of its operators.
        differs: differences of our computation from the published model, one phrase each.
        stored: number format of its checkpoint's weights; None = 16 or 32 bits, or the
            configuration does not say.
    """

    blocks: tuple[Block, ...]
    runs: tuple[Run, ...]
    hidden: int
    vocab: int
    name: str = ""
    architecture: str = ""
    max_context: int = 0
    base: Model | None = field(default=None, compare=False, repr=False)
    unread: tuple[str, ...] = field(default=(), compare=False, repr=False)
    # Digests of problems are made of what is printed, and no plan depends on either.
    settings: Settings = field(default=Settings(), repr=False)
    differs: tuple[str, ...] = field(default=(), compare=False, repr=False)
    stored: StoredFormat | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        names: set[str] = set()
        for run in self.runs:
            if not 0 <= run.block < len(self.blocks) or run.count <= 0:
                raise ValueError(f"run {run.name}: block {run.block} x {run.count}")
            missing = set(run.inputs) - names
            if missing or run.name in names:
                raise ValueError(
                    f"run {run.name}: inputs {sorted(missing)} are not defined before it, or its"
                    " name is taken"
                )
            names.add(run.name)

    def __hash__(self) -> int:
        # As for blocks: a model is a key of caches, and hashing every operator costs more than what
        # is looked up.
        return hash((self.name, self.hidden, self.vocab, len(self.blocks)))

    def is_memory(self, run: int, source: int) -> bool:
        """True if run number `run` reads run number `source` as its memory, not as its stream."""
        memory = self.blocks[self.runs[run].block].memory
        return bool(memory) and self.blocks[self.runs[source].block].sequence == memory

    @property
    def joins_streams(self) -> bool:
        """True if several runs, a teacher's aside, read data instead of runs (encoder-decoder).

        A teacher's stream does not count.

        In a model without such streams, every cut in the order of runs is a cut of one stream; what
        some runs read besides the stream bypasses others.
        """
        return (
            sum(not run.inputs and not self.blocks[run.block].is_of_teacher for run in self.runs)
            > 1
        )

    def before(self, name: str) -> frozenset[str]:
        """Names of all runs whose output reaches run `name`, itself included."""
        inputs = {run.name: run.inputs for run in self.runs}
        reached: set[str] = set()
        open_names = [name]
        while open_names:
            run_name = open_names.pop()
            if run_name not in reached:
                reached.add(run_name)
                open_names += inputs[run_name]
        return frozenset(reached)

    @property
    def teacher_layers(self) -> int:
        """Layers of the teacher (`model.add_frozen_teacher_to_model`); 0 = no teacher."""
        counts = ((run.count, self.blocks[run.block]) for run in self.runs)
        return sum(
            count for count, block in counts if block.is_of_teacher and not block.has_vocabulary
        )

    @property
    def num_parameters(self) -> int:
        """Elements of all stored parameters (tied ones once, every expert counted)."""
        return sum(self.blocks[run.block].num_parameters * run.count for run in self.runs)

    @property
    def num_trainable_parameters(self) -> int:
        """Elements of all stored parameters that have a gradient."""
        owned = (
            (run.count, p)
            for run in self.runs
            for o in self.blocks[run.block].operators
            for p in o.parameters
        )
        return sum(count * p.size for count, p in owned if p.trainable and not p.tied_to)

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token uses: topk / experts of the weights of routed experts."""
        total = 0
        for run in self.runs:
            for operator in self.blocks[run.block].operators:
                size = sum(p.size for p in operator.parameters if p.counted and not p.tied_to)
                if operator.experts is not None and operator.kind.value == "grouped-linear":
                    size = size * operator.experts.topk // operator.experts.experts
                total += size * run.count
        return total
