"""Planners of torch.distributed.checkpoint that write and read boxes of named tensors.

They need neither a plan nor a process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPiece:
    """A box of a named tensor, with its values to write or the memory to read into.

    Args:
        shape: shape of the whole tensor.
        box: interval of each dim.
        values: values, in the shape of the box.
    """

    name: str
    shape: tuple[int, ...]
    box: tuple[Interval, ...]
    values: torch.Tensor

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """Offsets and sizes of the box in its tensor, as torch's chunk metadata."""
        return ChunkStorageMetadata(
            offsets=torch.Size(a for a, _ in self.box), sizes=torch.Size(b - a for a, b in self.box)
        )

    @property
    def index(self) -> MetadataIndex:
        """Name and offsets of the box, torch's key of a written piece."""
        return MetadataIndex(self.name, [a for a, _ in self.box])


class PieceWriter(SavePlanner):  # type: ignore[misc]
    """Save planner that writes pieces.

    The plans of all devices are written unchanged, since no element is in two of them.
    """

    def __init__(self, pieces: list[CheckpointPiece]) -> None:
        self._pieces = {piece.index: piece for piece in pieces}

    def set_up_planner(
        self, state_dict: object, storage_meta: object = None, is_coordinator: bool = False
    ) -> None:
        """Do nothing: the pieces to write are given at construction."""

    def create_local_plan(self) -> SavePlan:
        """Plan a write item for every piece."""
        return SavePlan(
            [
                WriteItem(
                    index=index,
                    type=WriteItemType.SHARD,
                    tensor_data=TensorWriteData(
                        chunk=piece.chunk,
                        properties=TensorProperties(dtype=piece.values.dtype),
                        size=torch.Size(piece.shape),
                    ),
                )
                for index, piece in self._pieces.items()
            ]
        )

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The plans of all devices unchanged, and their common metadata."""
        plans, metadata = create_default_global_save_plan(all_plans)
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """Copy of a planned piece's values in contiguous CPU memory, for torch's writer.

        A view would be written with its whole storage.
        """
        return (
            self._pieces[write_item.index]
            .values.detach()
            .cpu()
            .clone(memory_format=torch.contiguous_format)
        )


class PieceReader(LoadPlanner):  # type: ignore[misc]
    """Load planner that fills pieces from any boxes in which the checkpoint was written."""

    def __init__(self, pieces: list[CheckpointPiece], metadata: Metadata) -> None:
        self._pieces = {piece.index: piece for piece in pieces}
        self._metadata = metadata

    def set_up_planner(
        self, state_dict: object, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Do nothing: the pieces to read are given at construction."""

    def create_local_plan(self) -> LoadPlan:
        """Plan a read item for every overlap of a piece with a written box."""
        by_name: dict[str, list[ChunkStorageMetadata]] = {}
        for piece in self._pieces.values():
            by_name.setdefault(piece.name, []).append(piece.chunk)
        written = self._metadata.state_dict_metadata
        return LoadPlan(
            [
                item
                for name, chunks in by_name.items()
                for item in create_read_items_for_chunk_list(name, written[name], chunks)
            ]
        )

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: object) -> None:
        """Raise AssertionError: all pieces are tensors, so torch never calls this method."""
        raise AssertionError(read_item)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """The part of a piece that a read item fills, as a view."""
        values = self._pieces[read_item.dest_index].values
        return values[
            tuple(
                slice(a, a + n)
                for a, n in zip(read_item.dest_offsets, read_item.lengths, strict=True)
            )
        ]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Do nothing: torch's reader filled the piece's tensor in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPieces:
    """Names of the files that one device wrote, and its part of the metadata."""

    files: tuple[str, ...]
    plan: SavePlan
    results: list[WriteResult]


def write_pieces(pieces: list[CheckpointPiece], folder: Path, *, device: int) -> WrittenPieces:
    """Write pieces to one file of a device, on disk on return; no file if there are no pieces."""
    planner = PieceWriter(pieces)
    plan = planner.create_local_plan()
    if not pieces:
        return WrittenPieces(files=(), plan=plan, results=[])
    writer = FileSystemWriter(folder)
    # Without collectives a writer names its files after its rank, here the device; the
    # metadata of all devices is written at the end.
    writer.set_up_storage_writer(True, rank=device, use_collectives=False)
    plan = writer.prepare_local_plan(plan)
    results = writer.write_data(plan, planner).wait()
    return WrittenPieces(
        files=tuple(sorted({r.storage_data.relative_path for r in results})),
        plan=plan,
        results=results,
    )


def write_metadata(written: list[WrittenPieces], folder: Path) -> None:
    """Write the common metadata of all devices' pieces."""
    _, metadata = PieceWriter([]).create_global_plan([w.plan for w in written])
    writer = FileSystemWriter(folder)
    writer.set_up_storage_writer(True)
    writer.finish(metadata, [w.results for w in written])


def read_pieces(
    pieces: list[CheckpointPiece], reader: FileSystemReader, metadata: Metadata
) -> None:
    """Read the boxes of pieces from a checkpoint into the pieces' memory."""
    planner = PieceReader(pieces, metadata)
    reader.set_up_storage_reader(metadata, True)
    reader.read_data(planner.create_local_plan(), planner).wait()


def written_elements(metadata: Metadata) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Iterate over (name, shape, number of written elements) of every tensor."""
    for name, entry in metadata.state_dict_metadata.items():
        yield (
            name,
            tuple(entry.size),
            sum(torch.Size(chunk.sizes).numel() for chunk in entry.chunks),
        )
