"""Tokens of one image see each other: which tokens those are, and what a core makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.numerics.attention.image_token_mask import (
    image_run_numbers,
    same_image_mask,
)
from shardwright.execute.numerics.registry import numerics_of
from shardwright.model.blocks.dense_transformer_operators import core_operator
from shardwright.model.ir.operator import AttentionShape
from tests.execute.lockstep import alone, place_of

SHAPE = AttentionShape(heads=2, kv_heads=1, head_dim=4, value_dim=4)


def test_worked_runs() -> None:
    assert image_run_numbers(
        torch.tensor([[9, 9, 3, 9], [3, 3, 9, 3], [1, 2, 3, 4]]), token=9
    ).tolist() == [
        [0, 0, -1, 1],
        [-1, -1, 0, -1],
        [-1, -1, -1, -1],
    ]


def test_runs_are_those_of_transformers() -> None:
    gemma = pytest.importorskip(
        "transformers.models.gemma4.modeling_gemma4", reason="Transformers is not installed"
    )
    ids = torch.randint(0, 3, (20, 30), generator=torch.Generator().manual_seed(4))
    wanted = gemma.get_block_sequence_ids_for_mask((ids == 2).int(), ids.device)
    assert torch.equal(image_run_numbers(ids, token=2), wanted)


def test_a_window_hides_the_keys_of_an_image_that_lie_before_it_and_none_behind() -> None:
    place = place_of(core_operator("core", source="rotary", shape=SHAPE), length=5, samples=1)
    runs = torch.tensor([[0, 0, 0, 0, -1]])
    assert same_image_mask(place, runs, torch.arange(5), window=0)[0, :4, :4].all()
    seen = same_image_mask(place, runs, torch.arange(5), window=2)[0].int().tolist()
    assert seen == [
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("window", [0, 3])
def test_a_core_and_its_gradients_are_those_of_plain_attention(window: int) -> None:
    core = replace(
        core_operator("core", source="rotary", shape=replace(SHAPE, window=window)),
        sees_images=True,
    )
    place = place_of(core, length=7)
    generator = torch.Generator().manual_seed(1)
    qkv = tuple(
        torch.randn((2, 7, e.size), generator=generator, dtype=torch.float64, requires_grad=True)
        for e in core.reads
    )
    runs = torch.tensor([[-1, 0, 0, 0, 0, -1, -1], [0, 0, -1, 1, 1, 1, 1]])
    at = torch.arange(7)
    distance = at[:, None] - at
    near = (distance < window) if window else torch.ones_like(distance, dtype=torch.bool)
    seen = (
        (distance >= 0) | ((runs[:, :, None] == runs[:, None]) & (runs[:, :, None] >= 0))
    ) & near
    query, key, value = (x.unflatten(-1, (-1, 4)).transpose(1, 2) for x in qkv)
    scores = (query @ key.transpose(-1, -2) / 2).masked_fill(~seen[:, None], -torch.inf)
    wanted = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)

    given = tuple(x.detach() for x in qkv)
    (found,), saved = alone(numerics_of(core).forward(place, (given, (runs,)), {}))
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-12, atol=1e-12)
    grad = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    (back,) = alone(numerics_of(core).input_grad(place, saved, (grad,), {}))
    for own, other in zip(back, torch.autograd.grad(wanted, qkv, grad), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)
