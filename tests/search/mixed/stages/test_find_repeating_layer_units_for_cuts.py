"""Where pipelines may be cut: of every model in the catalog, and of drawn chains against the blocks
that are there."""

from __future__ import annotations

import random

import numpy as np
import pytest

from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.search.joint.model_as_chain_of_one_layer_positions import chain_of
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import (
    AFTER,
    BEFORE,
    LAYER,
    LayerPattern,
    block_counts_of_parts,
    pattern_of,
)
from tests.search.mixed.members import KINDS, chain_model


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        ("llama-2-13b", LayerPattern(first=0, period=1, units=40, last=0)),
        ("deepseek-v3", LayerPattern(first=3, period=1, units=58, last=0)),
        ("llama-4-maverick", LayerPattern(first=0, period=4, units=12, last=0)),
        ("gemma-3-1b", LayerPattern(first=0, period=6, units=4, last=2)),
    ],
)
def test_patterns_of_known_models(model: str, pattern: LayerPattern) -> None:
    assert pattern_of(load_model(model)) == pattern


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_the_parts_make_up_the_model_and_every_unit_is_alike(seed: int, kind: str) -> None:
    model = chain_model(random.Random(seed), kind=kind)
    pattern, counts, chain = pattern_of(model), block_counts_of_parts(model), chain_of(model)
    assert (
        (counts[BEFORE] + pattern.units * counts[LAYER] + counts[AFTER]) == chain.counts.sum(axis=0)
    ).all()
    for unit in range(pattern.units):
        start = pattern.first + unit * pattern.period
        assert (chain.inner[start : start + pattern.period].sum(axis=0) == counts[LAYER]).all()
    sizes = tuple(
        np.diff(
            [
                0,
                *sorted(
                    random.Random(seed).sample(range(1, pattern.units), min(2, pattern.units - 1))
                ),
                pattern.units,
            ]
        ).tolist()
    )
    layers = pattern.layers(sizes)
    assert sum(layers) == len(chain)
    # Every stage has its units and the ends what is theirs.
    assert all(
        (some - units * pattern.period >= 0) for some, units in zip(layers, sizes, strict=True)
    )
    # No other pattern leaves less to an end.
    assert max(pattern.first, pattern.last) + pattern.period <= len(chain)
