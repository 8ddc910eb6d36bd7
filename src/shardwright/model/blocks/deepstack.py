"""Deepstack: features of inner layers of an image tower, each through a merger of its own, are
added behind the first language layers.

Meng et al. 2024, DeepStack (arXiv 2406.04334), in the form of Qwen3-VL. The tower ends a run behind
every layer whose features are taken; mergers ``deep.<i>`` lie before the projector, with which a
pipeline keeps them; language layer i reads merger i as its memory. So a run may be read by runs
that do not follow it: the chain from patches to the loss stays, and some tensors go round parts of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from shardwright.model.blocks.dense_blocks import hidden_extent
from shardwright.model.blocks.vision_language import IMAGE
from shardwright.model.ir.block import MEMORY, Block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind

DEEP = "deep"
DEEPSTACK = "deepstack"
"""The operator of a language layer that adds features at the places of image tokens."""


def with_deepstack(model: Model, *, merger: Sequence[Operator], after: Sequence[int]) -> Model:
    """`model`, a tower before a language model, whose language layer i takes the features of tower
    layer ``after[i]`` in.

    Args:
        merger: operators from a tower layer's output (`INPUT`) to the width of the language model;
            those of every merger.
        after: numbers of tower layers, which count up; no more than the language model has layers.
    """
    if not after:
        return model
    deep = Block(name=DEEP, operators=tuple(merger), sequence=IMAGE, beside=True)
    runs = _tower(model, after, deep=len(model.blocks))
    blocks = [*model.blocks, deep]
    for number in range(len(after)):
        runs = _with_layer_apart(runs, blocks, number, width=model.hidden, folds=merger[-1].folds)
    used = list(dict.fromkeys(run.block for run in runs))
    runs = [replace(run, block=used.index(run.block)) for run in runs]
    return replace(model, blocks=tuple(blocks[i] for i in used), runs=tuple(runs))


def _tower(model: Model, after: Sequence[int], *, deep: int) -> list[Run]:
    """The runs, with the tower's layers in stretches that end where features are taken, and all
    mergers behind the last.
    """
    found: list[Run] = []
    for run in model.runs:
        if run.name == "vision":
            ends = sorted({0, run.count, *(layer + 1 for layer in after)})
            for first, end in pairwise(ends):
                before = run.inputs if not first else (found[-1].name,)
                found.append(replace(run, name=f"vision.{first}", count=end - first, inputs=before))
            sources = {end: f"vision.{first}" for first, end in pairwise(ends)}
            found += [
                Run(name=f"{DEEP}.{i}", block=deep, count=1, inputs=(sources[layer + 1],))
                for i, layer in enumerate(after)
            ]
            last = sources[run.count]
        else:
            found.append(
                replace(
                    run, inputs=tuple(last if name == "vision" else name for name in run.inputs)
                )
            )
    return found


def _with_layer_apart(
    runs: list[Run], blocks: list[Block], number: int, *, width: int, folds: int
) -> list[Run]:
    """The runs, language layer `number` of which is a run of its own that reads merger `number`;
    its block joins `blocks`.
    """
    place, first = _run_of(runs, number)
    run = runs[place]
    block = _adding(blocks[run.block], width=width, folds=folds)
    if block not in blocks:
        blocks.append(block)
    own = Run(
        name=f"layers.{number}",
        block=blocks.index(block),
        count=1,
        inputs=(*run.inputs, f"{DEEP}.{number}"),
    )
    rest = (
        [replace(run, name=f"layers.{number + 1}", count=run.count - 1, inputs=(own.name,))]
        if run.count > 1
        else []
    )
    assert first == number, "layers before it are runs of their own"
    last = (rest or [own])[-1].name
    behind = [
        replace(other, inputs=tuple(last if name == run.name else name for name in other.inputs))
        for other in runs[place + 1 :]
    ]
    return [*runs[:place], own, *rest, *behind]


def _run_of(runs: Sequence[Run], number: int) -> tuple[int, int]:
    """(place, number of its first layer) of the run that has a language layer."""
    first = 0
    for place, run in enumerate(runs):
        if run.name.startswith("layers"):
            if number < first + run.count:
                return place, first
            first += run.count
    raise ValueError(f"the language model has no layer {number}")


def _adding(layer: Block, *, width: int, folds: int) -> Block:
    """A language layer that ends with the addition of what its memory has for each place of an
    image token, of `folds` patches each.
    """
    stream = hidden_extent(width)
    adds = Operator(
        name=DEEPSTACK,
        kind=OperatorKind.PERMUTE,
        klass=OperatorClass.STREAM,
        inputs=(layer.operators[-1].name, MEMORY),
        reads=(stream,),
        writes=(stream,),
        folds=folds,
        adds=True,
    )
    return replace(
        layer, name=f"{layer.name}_{DEEP}", operators=(*layer.operators, adds), memory=IMAGE
    )
