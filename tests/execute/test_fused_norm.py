"""Norms by an accelerator's kernels, stood in by PyTorch's decompositions of them, against norms
that are built up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._decomp import decomposition_table

from shardwright.execute.numerics.norms import fused_norms
from shardwright.execute.numerics.norms import norm_operator as norm
from shardwright.execute.numerics.norms.fused_norms import is_fused_norm
from shardwright.execute.numerics.norms.norm_groups_gain_and_bias_of_one_extent import ExtentNorm
from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.blocks.dense_transformer_operators import norm as norm_operator
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Parameter
from tests.execute.lockstep import alone, made_weights, place_of

BLOCK = 6


def _by_head() -> Operator:
    """Two heads normed with one gain."""
    whole = norm_operator("norm", source="x", hidden=2 * BLOCK)
    (gain,) = whole.parameters
    return replace(
        whole,
        parameters=(Parameter(name=gain.name, extents=(replace(gain.extents[0], size=BLOCK),)),),
    )


NORMS: dict[str, tuple[Operator, Settings]] = {
    "root mean square": (norm_operator("norm", source="x", hidden=BLOCK), Settings(eps=1e-2)),
    "gain and bias": (
        norm_operator("norm", source="x", hidden=BLOCK, bias=True),
        Settings(eps=1e-2),
    ),
    "centred without a bias": (
        norm_operator("norm", source="x", hidden=BLOCK),
        Settings(eps=1e-2, norms_centred=True),
    ),
    "by head": (_by_head(), Settings(eps=1e-2)),
}


def _ran(operator: Operator, settings: Settings) -> list[torch.Tensor]:
    """Output, and gradients of the input and of parameters."""
    generator, numerics = torch.Generator().manual_seed(3), numerics_of(operator)
    place = replace(place_of(operator, length=5), settings=settings)
    weights = made_weights(operator, generator)
    x, grad = (
        torch.randn((2, 5, operator.reads[0].size), generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    (y,), saved = alone(numerics.forward(place, ((x,),), weights))
    ((back,),) = alone(numerics.input_grad(place, saved, (grad,), weights))
    found = alone(numerics.weight_grad(place, saved, (grad,), weights))
    return [y, back, *(found[p.name] for p in operator.parameters)]


@pytest.mark.parametrize("name", NORMS)
def test_fused_norms_are_those_that_are_built_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _ran(*NORMS[name])
    asked: list[ExtentNorm] = []

    def always(part: ExtentNorm, *_: Any) -> bool:
        asked.append(part)
        return True

    monkeypatch.setattr(norm, "is_fused_norm", always)
    monkeypatch.setattr(fused_norms, "RMS_BACKWARD", decomposition_table[fused_norms.RMS_BACKWARD])
    found = _ran(*NORMS[name])
    assert len(asked) == 3
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


def test_what_the_kernels_norm() -> None:
    part = ExtentNorm(index=0, block=4, size=4, split=False, gain="gain", bias="", centred=False)

    class OnGpu:
        device, dtype = torch.device("cuda"), torch.bfloat16

        def numel(self) -> int:
            return 8

    x: Any = OnGpu()
    gain = {"gain": torch.ones(4, dtype=torch.bfloat16)}
    assert is_fused_norm(part, x, gain)
    assert not is_fused_norm(part, x, {"gain": gain["gain"].float()})
    assert not is_fused_norm(replace(part, split=True), x, gain)
    assert not is_fused_norm(replace(part, groups=2), x, gain)
    assert not is_fused_norm(part, torch.ones(8, dtype=torch.bfloat16), gain)
