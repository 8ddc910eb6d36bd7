"""All uses of each parameter of a plan: the stages, segments and operators that read it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Parameter
from shardwright.program.layout.device_cuts_in_placement_tree import row_of
from shardwright.program.stages.stage_segments import Segment, StageParts

Use = tuple[int, int, int]
"""(lane, chunk, segment) of a use of a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPlace:
    """One use of a parameter: its stage, segment and operator."""

    use: Use
    stage: StageParts
    segment: Segment
    operator: Operator
    parameter: Parameter

    @property
    def devices(self) -> DeviceList:
        """Devices that run the operator that uses the parameter."""
        return row_of(self.segment.cells.cells.get(self.operator.klass, {})).shifted(
            self.stage.base
        )


def parameter_places(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model
) -> dict[tuple[int, int, str, str], tuple[ParameterPlace, ...]]:
    """All uses of each parameter, the owner's first, by (run, layer, operator, parameter).

    By (run, layer, operator, parameter) of its owner.
    """
    return {
        (stretch.run, layer, *name): places
        for stretch in parameter_stretches(stages, model=model)
        for name in stretch.names
        for places in (stretch.places(*name),)
        for first, count in stretch.layers
        for layer in range(first, first + count)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterStretch:
    """Parameters of layers of a run that the same segments use, with all uses.

    Args:
        layers: (first, number) of each row of them.
        names: (operator, parameter) of their owner.
        spots: segments that use them by the owner's own name.
        others: uses by another name.
    """

    run: int
    layers: tuple[tuple[int, int], ...]
    names: tuple[tuple[str, str], ...]
    spots: tuple[tuple[Use, StageParts, Segment], ...]
    others: tuple[ParameterPlace, ...] = ()

    def places(self, operator: str, parameter: str) -> tuple[ParameterPlace, ...]:
        """Places of a parameter, by the names of its operator and itself, the owner's first."""
        return (
            *(
                ParameterPlace(use=use, stage=stage, segment=segment, operator=o, parameter=p)
                for use, stage, segment in self.spots
                for o in segment.block.operators
                if o.name == operator
                for p in o.parameters
                if p.name == parameter
            ),
            *self.others,
        )


def parameter_stretches(
    stages: tuple[tuple[StageParts, ...], ...], *, model: Model
) -> Iterator[ParameterStretch]:
    """Every parameter of every layer once, grouped by layers with the same uses."""
    all_segments = [
        ((s.lane, s.chunk, number), s, segment)
        for lane in stages
        for s in lane
        for number, segment in enumerate(s.segments)
    ]
    owners = {
        f"{b.name}.{p.name}": (i, o.name, p.name)
        for i, b in enumerate(model.blocks)
        for o in b.operators
        for p in o.parameters
    }
    first_run = {run.block: i for i, run in reversed(list(enumerate(model.runs)))}
    named = [
        p.tied_to
        for b in model.blocks
        for o in b.operators
        for p in o.parameters
        if p.tied_to in owners
    ]
    owner_of: dict[str, tuple[int, str, str]] = {
        name: (first_run[owners[name][0]], *owners[name][1:]) for name in named
    }
    borders: dict[int, set[int]] = {run: {1} for run, *_ in owner_of.values()}
    for _, _, segment in all_segments:
        borders.setdefault(segment.run, set()).update(
            (segment.first, segment.first + segment.count)
        )
    owner_runs = {run for run, *_ in owner_of.values()}
    spots: dict[tuple[int, int], list[tuple[Use, StageParts, Segment]]] = {}
    other_places: dict[tuple[int, str, str], list[ParameterPlace]] = {
        owner: [] for owner in owner_of.values()
    }
    rows: dict[Use, list[tuple[int, int]]] = {}
    ordered = {run: sorted(borders_of_segment) for run, borders_of_segment in borders.items()}
    blocks = {id(segment.block): segment.block for _, _, segment in all_segments}
    tied = {
        key: [(o, p) for o in b.operators for p in o.parameters if p.tied_to in owner_of]
        for key, b in blocks.items()
    }
    for use, stage, segment in all_segments:
        ends = ordered[segment.run]
        borders_of_segment = ends[
            bisect_left(ends, segment.first) : bisect_right(ends, segment.first + segment.count)
        ]
        rows[use] = [(first, end - first) for first, end in pairwise(borders_of_segment)]
        for first, _ in rows[use]:
            spots.setdefault((segment.run, first), []).append((use, stage, segment))
        for operator, parameter in tied[id(segment.block)]:
            place = ParameterPlace(
                use=use, stage=stage, segment=segment, operator=operator, parameter=parameter
            )
            other_places[owner_of[parameter.tied_to]].append(place)
    yielded: set[tuple[int, int, str, str]] = set()
    # Rows of which all parameters have been told together; by block its parameters, none where one
    # is tied.
    yielded_rows: set[tuple[int, int]] = set()
    names_of = {
        key: tuple([(o.name, p.name) for o in b.operators for p in o.parameters])
        for key, b in blocks.items()
        if not tied[key]
    }
    for use, _, segment in all_segments:
        block, same_rows = segment.block, spots[segment.run, segment.first]
        names = None if segment.run in owner_runs else names_of.get(id(block))
        rows_by_uses: dict[tuple[Use, ...], list[tuple[int, int]]] = {}
        for row in rows[use]:
            rows_by_uses.setdefault(
                tuple([spot[0] for spot in spots[segment.run, row[0]]]), []
            ).append(row)
        if (
            names is not None
            and len(rows_by_uses) == 1
            and {id(segment_there.block) for _, _, segment_there in same_rows} == {id(block)}
        ):
            if same_rows[0][0] == use:
                yielded_rows.add((segment.run, segment.first))
                yield ParameterStretch(
                    run=segment.run, layers=tuple(rows[use]), names=names, spots=tuple(same_rows)
                )
            continue
        for name, p in ((o.name, p) for o in block.operators for p in o.parameters):
            owner = owner_of.get(p.tied_to or "", (segment.run, name, p.name))
            parts = [[(0, 1)]] if p.tied_to in owner_of else list(rows_by_uses.values())
            if owner in other_places:
                parts = [
                    part
                    for rows_of_layers in parts
                    for part in (
                        [r for r in rows_of_layers if not r[0]],
                        [r for r in rows_of_layers if r[0]],
                    )
                    if part
                ]
            for layers in parts:
                run, first = owner[0], layers[0][0]
                if (run, first) not in yielded_rows and (run, first, *owner[1:]) not in yielded:
                    yielded.add((run, first, *owner[1:]))
                    yield ParameterStretch(
                        run=run,
                        layers=tuple(layers),
                        names=(owner[1:],),
                        spots=tuple(
                            s
                            for s in spots.get((run, first), ())
                            if any(o.name == owner[1] for o in s[2].block.operators)
                        ),
                        others=() if first else tuple(other_places.get(owner, ())),
                    )
