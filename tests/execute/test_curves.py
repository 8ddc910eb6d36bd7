"""Gradients of activations are those of torch's autograd, and each of them differs from the
others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics.layers.activation_functions import (
    activation_gradient,
    apply_activation,
)
from shardwright.model.ir.numerical_constants import ACTIVATIONS


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_are_those_of_autograd(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    x, grad = (torch.randn(257, generator=generator, dtype=torch.float64) * 3 for _ in range(2))
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((apply_activation(name, leaf) * grad).sum(), leaf)
    torch.testing.assert_close(activation_gradient(name, grad, x), wanted, rtol=1e-13, atol=1e-13)
    assert all(
        not torch.allclose(apply_activation(other, x), apply_activation(name, x), atol=1e-6)
        for other in ACTIVATIONS
        if other != name
    )
