"""Time, row and column of the tokens of texts with an image are those that Transformers finds."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics.images.text_and_image_positions import grid_positions
from tests.tiers import seeds

TOKEN, WORDS = 5, 19


def text(length: int, *, at: int = 0, places: int = 0) -> torch.Tensor:
    """Random words, with places of an image from `at` on."""
    ids = torch.randint(TOKEN + 1, WORDS, (length,))
    ids[at : at + places] = TOKEN
    return ids


@pytest.mark.parametrize("seed", seeds(8, 100))
def test_positions_are_those_of_transformers(seed: int) -> None:
    """Images anywhere, at both ends too, and texts without one; grids of any sides."""
    modeling = pytest.importorskip("transformers.models.qwen3_vl.modeling_qwen3_vl")
    config = modeling.Qwen3VLConfig(vision_config={"spatial_merge_size": 2})
    draw, owner = random.Random(seed), object.__new__(modeling.Qwen3VLModel)
    torch.nn.Module.__init__(owner)
    owner.config = config
    rows, columns = draw.randint(1, 5), draw.randint(1, 5)
    length = rows * columns + draw.randint(0, 9)
    starts = [draw.randint(0, length - rows * columns) for _ in range(4)]
    ids = torch.stack(
        [text(length, at=at, places=rows * columns * draw.randint(0, 1)) for at in starts]
    )
    kinds = (ids == TOKEN).int()
    grids = torch.tensor([[1, 2 * rows, 2 * columns]] * int(kinds.any(1).sum())).reshape(-1, 3)
    wanted, _ = owner.get_rope_index(ids, kinds, image_grid_thw=grids)
    assert torch.equal(
        grid_positions(ids, token=TOKEN, grid=(rows, columns)), wanted.permute(1, 2, 0)
    )
