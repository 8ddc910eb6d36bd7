"""Products of rows in groups, by PyTorch's kernel and by a loop, are the same; empty groups,
too."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics.experts import grouped_gemm
from shardwright.execute.numerics.experts.grouped_gemm import (
    group_ends,
    grouped_matmul,
    grouped_outer_products,
)

GROUPS = {
    "some empty": [0, 0, 0, 2, 2, 5],
    "one": [1] * 7,
    "first and last": [0, 5],
    "none": [],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("width", "out"), [(16, 8), (10, 6)])
@pytest.mark.parametrize("name", GROUPS)
def test_each_group_is_multiplied_by_its_own_matrix(
    name: str, width: int, out: int, dtype: torch.dtype
) -> None:
    groups, count = torch.tensor(GROUPS[name], dtype=torch.int64), 6
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(groups), width, generator=generator).to(dtype)
    others = torch.randn(len(groups), out, generator=generator).to(dtype)
    matrices = torch.randn(count, width, out, generator=generator).to(dtype)
    ends = group_ends(groups, count)
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    wanted = (
        torch.stack([row @ matrices[g] for row, g in zip(rows, groups, strict=True)])
        if len(groups)
        else rows.new_zeros((0, out))
    )
    torch.testing.assert_close(grouped_matmul(rows, matrices, ends), wanted, **near)
    torch.testing.assert_close(
        grouped_matmul(others, matrices.transpose(1, 2), ends).shape, rows.shape
    )
    total = torch.zeros(count, width, out, dtype=torch.float64)
    for row, other, g in zip(rows, others, groups, strict=True):
        total[g] += torch.outer(row.double(), other.double())
    torch.testing.assert_close(grouped_outer_products(rows, others, ends).double(), total, **near)


def test_rows_that_fit_go_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the ends on the device: nobody asks for them."""

    def never(*_: object) -> None:
        raise AssertionError("the ends are asked for")

    monkeypatch.setattr(grouped_gemm, "_rows_by_group", never)
    rows, ends = torch.randn(4, 16), group_ends(torch.tensor([0, 1, 1, 2]), 3)
    assert grouped_matmul(rows, torch.randn(3, 16, 8), ends).shape == (4, 8)
    assert grouped_outer_products(rows, torch.randn(4, 8), ends).shape == (3, 16, 8)
    with pytest.raises(AssertionError):
        grouped_matmul(rows.double(), torch.randn(3, 16, 8).double(), ends)


def test_ends_of_groups() -> None:
    assert group_ends(torch.tensor([0, 0, 2]), 3).tolist() == [2, 2, 3]
