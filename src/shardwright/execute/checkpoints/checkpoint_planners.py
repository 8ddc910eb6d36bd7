"""Planners of torch.distributed.checkpoint that write and read boxes of named tensors, without a
plan or a process group.
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

from shardwright.lazy_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A box of a named tensor, and its values: what is written, or where what is read goes.

    Args:
        shape: of the whole tensor.
        box: an interval of each dim.
        values: in the shape of the box.
    """

    name: str
    shape: tuple[int, ...]
    box: tuple[Interval, ...]
    values: torch.Tensor

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """The box's place in its tensor."""
        return ChunkStorageMetadata(
            offsets=torch.Size(a for a, _ in self.box), sizes=torch.Size(b - a for a, b in self.box)
        )

    @property
    def index(self) -> MetadataIndex:
        """By which the box is found: pieces of one tensor do not overlap."""
        return MetadataIndex(self.name, [a for a, _ in self.box])


class PieceWriter(SavePlanner):  # type: ignore[misc]
    """Plans to write pieces. The plans of all devices are written as they are: no element is in two
    of them.
    """

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = {piece.index: piece for piece in pieces}

    def set_up_planner(
        self, state_dict: object, storage_meta: object = None, is_coordinator: bool = False
    ) -> None:
        """Nothing: the pieces are known."""

    def create_local_plan(self) -> SavePlan:
        """An item for every piece."""
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
        """The plans, and the metadata of all."""
        plans, metadata = create_default_global_save_plan(all_plans)
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """The values of a piece, in their own storage (a view would be written with all that it is
        a view of).
        """
        return (
            self._pieces[write_item.index]
            .values.detach()
            .cpu()
            .clone(memory_format=torch.contiguous_format)
        )


class PieceReader(LoadPlanner):  # type: ignore[misc]
    """Plans to fill pieces, whatever boxes the checkpoint was written in."""

    def __init__(self, pieces: list[Piece], metadata: Metadata) -> None:
        self._pieces = {piece.index: piece for piece in pieces}
        self._metadata = metadata

    def set_up_planner(
        self, state_dict: object, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Nothing: the pieces are known."""

    def create_local_plan(self) -> LoadPlan:
        """An item for every overlap of a piece with what was written."""
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
        """The plans as they are."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: object) -> None:
        """Never: pieces are tensors."""
        raise AssertionError(read_item)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """The part of a piece that an item fills."""
        values = self._pieces[read_item.dest_index].values
        return values[
            tuple(
                slice(a, a + n)
                for a, n in zip(read_item.dest_offsets, read_item.lengths, strict=True)
            )
        ]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing: it was filled in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPieces:
    """One device's output: names of its files, and its part of the metadata."""

    files: tuple[str, ...]
    plan: SavePlan
    results: list[WriteResult]


def write_pieces(pieces: list[Piece], folder: Path, *, device: int) -> WrittenPieces:
    """Write pieces to one file of a device, on disk when this returns; no file where there are
    none.
    """
    planner = PieceWriter(pieces)
    plan = planner.create_local_plan()
    if not pieces:
        return WrittenPieces(files=(), plan=plan, results=[])
    writer = FileSystemWriter(folder)
    # Without collectives a writer names its files after its rank; ours is a device, and the
    # metadata is written for all at the end.
    writer.set_up_storage_writer(True, rank=device, use_collectives=False)
    plan = writer.prepare_local_plan(plan)
    results = writer.write_data(plan, planner).wait()
    return WrittenPieces(
        files=tuple(sorted({r.storage_data.relative_path for r in results})),
        plan=plan,
        results=results,
    )


def write_metadata(written: list[WrittenPieces], folder: Path) -> None:
    """Write the metadata of all devices' pieces."""
    _, metadata = PieceWriter([]).create_global_plan([w.plan for w in written])
    writer = FileSystemWriter(folder)
    writer.set_up_storage_writer(True)
    writer.finish(metadata, [w.results for w in written])


def read_pieces(pieces: list[Piece], reader: FileSystemReader, metadata: Metadata) -> None:
    """Fill pieces from a checkpoint."""
    planner = PieceReader(pieces, metadata)
    reader.set_up_storage_reader(metadata, True)
    reader.read_data(planner.create_local_plan(), planner).wait()


def written_elements(metadata: Metadata) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """(name, shape, elements that were written) of every tensor."""
    for name, entry in metadata.state_dict_metadata.items():
        yield (
            name,
            tuple(entry.size),
            sum(torch.Size(chunk.sizes).numel() for chunk in entry.chunks),
        )
