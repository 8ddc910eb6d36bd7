"""DeepStack: features of inner image-tower layers, added after the first language layers.

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

from shardwright.model.blocks.dense_transformer_operators import hidden_extent
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.block import MEMORY, Block
from shardwright.model.ir.model_graph import Model, Run
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind

DEEP = "deep"
DEEPSTACK = "deepstack"
"""Name of the language-layer operator that adds features at image-token positions."""


def with_deepstack(model: Model, *, merger: Sequence[Operator], after: Sequence[int]) -> Model:
    """Add DeepStack: language layer i adds the merged features of tower layer ``after[i]``.

    Args:
        merger: operators of each merger, from a tower layer's output (`INPUT`) to the width of
            the language model.
        after: numbers of tower layers in increasing order; at most as many as language layers.
    """
    if not after:
        return model
    deep = Block(name=DEEP, operators=tuple(merger), sequence=IMAGE, beside=True)
    runs = _runs_with_taps(model, after, merger_block=len(model.blocks))
    blocks = [*model.blocks, deep]
    for number in range(len(after)):
        runs = _with_separate_layer(
            runs, blocks, number, width=model.hidden, folds=merger[-1].folds
        )
    used = list(dict.fromkeys(run.block for run in runs))
    runs = [replace(run, block=used.index(run.block)) for run in runs]
    return replace(model, blocks=tuple(blocks[i] for i in used), runs=tuple(runs))


def _runs_with_taps(model: Model, after: Sequence[int], *, merger_block: int) -> list[Run]:
    """The model's runs, the vision tower's split after each layer of `after`, with merger runs."""
    runs: list[Run] = []
    for run in model.runs:
        if run.name == "vision":
            ends = sorted({0, run.count, *(layer + 1 for layer in after)})
            for first, end in pairwise(ends):
                before = run.inputs if not first else (runs[-1].name,)
                runs.append(replace(run, name=f"vision.{first}", count=end - first, inputs=before))
            sources = {end: f"vision.{first}" for first, end in pairwise(ends)}
            runs += [
                Run(name=f"{DEEP}.{i}", block=merger_block, count=1, inputs=(sources[layer + 1],))
                for i, layer in enumerate(after)
            ]
            last = sources[run.count]
        else:
            runs.append(
                replace(
                    run, inputs=tuple(last if name == "vision" else name for name in run.inputs)
                )
            )
    return runs


def _with_separate_layer(
    runs: list[Run], blocks: list[Block], number: int, *, width: int, folds: int
) -> list[Run]:
    """Give language layer `number` a run of its own that adds the output of merger `number`.

    Its block is added to `blocks`.
    """
    place, first = _run_of(runs, number)
    run = runs[place]
    block = _with_feature_addition(blocks[run.block], width=width, folds=folds)
    if block not in blocks:
        blocks.append(block)
    layer_run = Run(
        name=f"layers.{number}",
        block=blocks.index(block),
        count=1,
        inputs=(*run.inputs, f"{DEEP}.{number}"),
    )
    rest = (
        [replace(run, name=f"layers.{number + 1}", count=run.count - 1, inputs=(layer_run.name,))]
        if run.count > 1
        else []
    )
    assert first == number, "layers before it are runs of their own"
    last = (rest or [layer_run])[-1].name
    later_runs = [
        replace(later, inputs=tuple(last if name == run.name else name for name in later.inputs))
        for later in runs[place + 1 :]
    ]
    return [*runs[:place], layer_run, *rest, *later_runs]


def _run_of(runs: Sequence[Run], number: int) -> tuple[int, int]:
    """(index of the run that contains language layer `number`, number of the run's first layer)."""
    first = 0
    for place, run in enumerate(runs):
        if run.name.startswith("layers"):
            if number < first + run.count:
                return place, first
            first += run.count
    raise ValueError(f"the language model has no layer {number}")


def _with_feature_addition(layer: Block, *, width: int, folds: int) -> Block:
    """A language layer, then an operator that adds merged image features at image-token positions.

    Each image token has `folds` patches.
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
