"""Which row of a table of biases each distance has: worked values, and those of Transformers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics.attention.learned_distance_bias import bias_rows, distance_biases
from shardwright.model.ir.operator import Mask

FAR = torch.arange(-300, 301)


def test_worked_rows() -> None:
    found = bias_rows(torch.tensor([15, 16, 32, 200]), mask=Mask.CAUSAL, rows=32, reach=128)
    assert found.tolist() == [15, 16, 21, 31]
    # Half of the rows are of keys behind a query; distance 64 is half way from 8 to 128 in
    # logarithms and a half more: 8 + 6.
    assert bias_rows(
        torch.tensor([0, 7, 64, -64, -1]), mask=Mask.FULL, rows=32, reach=128
    ).tolist() == [0, 7, 14, 30, 17]


@pytest.mark.parametrize(
    ("rows", "reach"), [(32, 128), (32, 20), (8, 6), (5, 4), (64, 256), (33, 1000)]
)
def test_rows_are_those_of_transformers(rows: int, reach: int) -> None:
    t5 = pytest.importorskip(
        "transformers.models.t5.modeling_t5", reason="Transformers is not installed"
    )
    for mask in Mask:
        both = mask is Mask.FULL
        wanted = t5.T5Attention._relative_position_bucket(
            -FAR, bidirectional=both, num_buckets=rows, max_distance=reach
        )
        found = bias_rows(FAR, mask=mask, rows=rows, reach=reach)
        assert torch.equal(
            found[FAR >= 0] if not both else found, wanted[FAR >= 0] if not both else wanted
        )


def test_a_bias_is_its_row_of_the_table() -> None:
    table = torch.arange(16.0).reshape(8, 2)
    distance = torch.tensor([[0, -1], [1, 0]])
    assert distance_biases(table, distance, mask=Mask.FULL, reach=6).tolist() == [
        [[0.0, 10.0], [2.0, 0.0]],
        [[1.0, 11.0], [3.0, 1.0]],
    ]
