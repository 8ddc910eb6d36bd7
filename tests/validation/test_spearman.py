"""Correlation of ranks: as SciPy has it, with ties, of many resamples at once."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.validation.training.sweep_and_scaling_checks import spearman


def test_it_is_that_of_scipy_for_every_resample() -> None:
    # Imported by the worker that runs this alone: it takes a second.
    from scipy.stats import spearmanr

    generator = np.random.default_rng(0)
    pairs, picks = (
        generator.integers(0, 12, (40, 2)).astype(float),
        generator.integers(0, 40, (50, 40)),
    )
    expected = [spearmanr(pairs[row, 0], pairs[row, 1]).statistic for row in picks]
    assert spearman(pairs, picks) == pytest.approx(expected, abs=1e-12)
    assert spearman(pairs)[0] == pytest.approx(
        spearmanr(pairs[:, 0], pairs[:, 1]).statistic, abs=1e-12
    )


def test_a_worked_one() -> None:
    assert spearman(np.array([(1.0, 10.0), (2.0, 30.0), (2.0, 20.0)]))[0] == pytest.approx(
        1.5 / 3**0.5
    )
