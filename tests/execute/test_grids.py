"""Rows and columns of patches, what turns by them, and tables of positions that are stretched:
worked values, and those of PyTorch."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional

from shardwright.errors import DataError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.numerics.images.patch_grid_and_position_interpolation import (
    image_grid,
    interpolated_rows,
    patch_coordinates,
)
from shardwright.execute.numerics.positions.rotary_angles import (
    cosines_and_sines,
    rotary_rates,
    rotate_pairs,
    rotated_pair_count,
)
from shardwright.execute.proof.prove_plan import random_batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    run_step,
    single_device_plan,
)
from shardwright.model.ir.numerical_constants import GridRotary, ImageInput, PositionGrid, Settings
from tests.execute.test_merged_patches import job_of, small_kimi

CPU = torch.device("cpu")
IMAGE = ImageInput(token=5, patch=(3, 4, 4), block=(2, 2))


def test_patches_are_counted_block_by_block() -> None:
    found = patch_coordinates(torch.arange(16), columns=4, block=(2, 2))
    assert found[:8].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    assert patch_coordinates(torch.tensor([8, 15]), columns=4, block=(2, 2)).tolist() == [
        [2, 0],
        [3, 3],
    ]
    assert patch_coordinates(torch.tensor([5, 6]), columns=3, block=(1, 1)).tolist() == [
        [1, 2],
        [2, 0],
    ]
    # Of blocks of 1 x 2 the second row begins behind the first.
    assert patch_coordinates(torch.tensor([2, 3, 4]), columns=4, block=(1, 2)).tolist() == [
        [0, 2],
        [0, 3],
        [1, 0],
    ]


def test_images_are_squares_of_whole_blocks() -> None:
    assert image_grid(IMAGE, patches=36) == (6, 6)
    assert image_grid(replace(IMAGE, block=(2, 3)), patches=36) == (6, 6)
    for patches in (9, 12, 35):
        with pytest.raises(
            DataError, match=f"{patches} patches is no square of whole blocks of 2 x 2"
        ):
            image_grid(IMAGE, patches=patches)
    assert (IMAGE.written(36), replace(IMAGE, block=(1, 1), first=1).written(37)) == (9, 36)


SIDES = (
    ((4, 4), (6, 6)),
    ((7, 7), (3, 3)),
    ((3, 5), (8, 2)),
    ((4, 4), (4, 4)),
    ((5, 5), (1, 1)),
    ((1, 1), (3, 3)),
)
"""Of tables, and of the images that they are stretched over."""


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize(("known", "size"), SIDES)
def test_a_stretched_table_is_that_of_pytorch(
    known: tuple[int, int], size: tuple[int, int], cubic: bool, corners: bool
) -> None:
    table = torch.randn(
        known[0] * known[1], 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    at = patch_coordinates(torch.arange(size[0] * size[1]), columns=size[1], block=(1, 1))
    rows, weights = interpolated_rows(
        at, size, PositionGrid(rows=known[0], columns=known[1], cubic=cubic, corners=corners)
    )
    found = (table[rows] * weights.unsqueeze(-1)).sum(1)
    image = table.T.unflatten(1, known).unsqueeze(0)
    wanted = functional.interpolate(
        image, size=size, mode="bicubic" if cubic else "bilinear", align_corners=corners
    )
    torch.testing.assert_close(found, wanted[0].flatten(1).T, rtol=0, atol=1e-12)
    assert weights.sum(1) == pytest.approx(torch.ones(len(at)))


def test_a_table_as_large_as_the_image_is_its_rows() -> None:
    at = patch_coordinates(torch.arange(16), columns=4, block=(2, 2))
    rows, weights = interpolated_rows(at, (4, 4), PositionGrid(rows=4, columns=4, cubic=True))
    assert rows.flatten().tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    assert weights.tolist() == [[1.0]] * 16


def test_pairs_turn_by_rows_or_by_columns() -> None:
    settings = Settings(rope_base=100.0, turns=GridRotary())
    assert rotary_rates(settings, 4, device=CPU).tolist() == [
        [1.0, 0.1, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.1],
    ]
    in_turns = replace(settings, turns=GridRotary(axes=(1, 0), in_turns=True))
    assert rotary_rates(in_turns, 4, device=CPU).tolist() == [
        [0.0, 1.0, 0.0, 0.1],
        [1.0, 0.0, 0.1, 0.0],
    ]
    # A third of the pairs turns by frames, and two elements of a head of 20 by nothing.
    of_videos = replace(settings, turns=GridRotary(axes=(2, 0, 1)))
    assert rotated_pair_count(of_videos, 20) == 9
    assert rotary_rates(of_videos, 6, device=CPU).tolist() == [
        [0, 0, 1.0, 0.1, 0, 0],
        [0, 0, 0, 0, 1.0, 0.1],
    ]
    # Row 2, column 3: the first pair turns by 3, the second by 2.
    cos, sin = cosines_and_sines(
        torch.tensor([[2, 3]]),
        rotary_rates(in_turns, 4, device=CPU),
        scale=1.0,
        dtype=torch.float64,
    )
    assert cos[0, 0].tolist() == pytest.approx(
        torch.tensor([3.0, 2.0, 0.3, 0.2], dtype=torch.float64).cos().tolist()
    )
    x = torch.tensor([[[1.0, 0, 0, 0, 0, 0, 0, 0]]], dtype=torch.float64)
    found = rotate_pairs(x, cos, sin, width=8)[0, 0]
    assert found.tolist() == pytest.approx(
        [float(cos[0, 0, 0]), 0, 0, 0, float(sin[0, 0, 0]), 0, 0, 0]
    )


def test_what_a_query_sees_of_a_key_depends_on_how_far_apart_they_are() -> None:
    """The same of two patches two rows and one column apart, wherever they are."""
    rates = rotary_rates(Settings(turns=GridRotary(axes=(1, 0), in_turns=True)), 4, device=CPU)
    q, k = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def at(x: torch.Tensor, row: int, column: int) -> torch.Tensor:
        return rotate_pairs(
            x,
            *cosines_and_sines(
                torch.tensor([[row, column]]), rates, scale=1.0, dtype=torch.float64
            ),
            width=8,
        )

    scores = [
        float((at(q, row, column) * at(k, row + 2, column + 1)).sum())
        for row, column in ((0, 0), (3, 1), (5, 6))
    ]
    assert scores == pytest.approx([scores[0]] * 3)
    assert float((at(q, 0, 0) * at(k, 1, 2)).sum()) != pytest.approx(scores[0])


def test_the_gradient_of_a_stretched_table_is_the_slope_of_the_loss() -> None:
    """Images of 6 x 6 patches over a table of 4 x 4; against differences of the loss in three rows
    of it."""
    model, job = small_kimi(), job_of(samples=2)
    batch, source = random_batch(model, job, seed=1), seeded(model, seed=1)
    whole = run_step(model, job, single_device_plan(model, job), batch=batch, source=source)
    (store,) = whole.stores.values()
    key = next(key for key in store.held if key[3] == "patch.positions")
    (held,) = store.held[key].values()
    assert held.gradient is not None
    assert held.gradient.shape[0] == 16

    def loss(row: int, by: float) -> float:
        def moved(asked: object) -> torch.Tensor:
            value = source(asked)
            if asked == key:
                value = value.clone()
                value[row, 3] += by
            return value

        return float(
            run_step(model, job, single_device_plan(model, job), batch=batch, source=moved).loss
        )

    for row in (0, 5, 14):
        slope = (loss(row, 1e-5) - loss(row, -1e-5)) / 2e-5
        assert float(held.gradient[row, 3]) == pytest.approx(slope, abs=1e-9)
