"""AdamW and clipping against torch's own; pieces of states, as integers, against what lowering
says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from shardwright.cost.gradients.plan_sharded_elements import (
    frozen_parameter_cuts,
    trainable_parameter_cuts,
)
from shardwright.cost.gradients.reduction_groups_of_plan_gradient_buckets import placed_in_buckets
from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.device_state.zero_bucket_collectives import ShardGroup
from shardwright.execute.numerics.base.run_precision import uniform_precision
from shardwright.execute.training.adamw_optimizer import (
    BLOCK,
    AdamW,
    clip_factor,
    moments,
    require_adamw,
    square_sum,
    update,
)
from shardwright.execute.training.device_training_state import create_device_state
from shardwright.job.training_job import Optimizer, OptimizerFamily
from shardwright.program.stages.held_parameters import HeldParameters, Holdings, plan_holdings
from shardwright.program.zero_sharding import shard_rules
from tests.execute.small_plans import PLANS
from tests.tiers import cases


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [0.0, 0.3, 100.0])
def test_updates_are_those_of_torch(dtype: torch.dtype, clip: float) -> None:
    generator = torch.Generator().manual_seed(1)
    rule = AdamW(rate=2e-2, betas=(0.8, 0.97), eps=1e-6, decay=0.2, clip=clip)
    ours = [torch.randn(n, generator=generator, dtype=dtype) for n in (7, 30)]
    theirs = [torch.nn.Parameter(p.clone()) for p in ours]
    reference = torch.optim.AdamW(
        theirs, lr=rule.rate, betas=rule.betas, eps=rule.eps, weight_decay=rule.decay
    )
    states = [moments(p, precision=uniform_precision(dtype)) for p in ours]
    for step in range(1, 8):
        gradients = [torch.randn(p.shape, generator=generator, dtype=dtype) for p in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        reference.step()
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        factor = clip_factor(norm, rule)
        for own, gradient, of_own in zip(ours, gradients, states, strict=True):
            update(own, gradient, of_own, step=step, rule=rule, factor=factor)
        close = 1e-6 if dtype == torch.float32 else 1e-14
        for own, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ends", [(3, 200), (64, 150), (130, 131)])
def test_an_element_is_updated_alike_wherever_its_piece_is_cut(
    dtype: torch.dtype, ends: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(4)
    parameter, *gradients = (
        torch.randn(300, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4)
    )
    rule, factor = AdamW(), torch.tensor(0.3)
    cuts = (0, *ends, 300)
    pieces = [parameter[a:b].clone() for a, b in pairwise(cuts)]
    states = [moments(p, precision=uniform_precision(dtype)) for p in pieces]
    whole, of_whole = parameter.clone(), moments(parameter, precision=uniform_precision(dtype))
    for step, gradient in enumerate(gradients, start=1):
        update(whole, gradient.clone(), of_whole, step=step, rule=rule, factor=factor)
        for piece, part, of_piece in zip(
            pieces, [gradient[a:b].clone() for a, b in pairwise(cuts)], states, strict=True
        ):
            update(piece, part, of_piece, step=step, rule=rule, factor=factor)
        assert torch.equal(torch.cat(pieces), whole)
        for name, tensor in of_whole.tensors.items():
            assert torch.equal(torch.cat([s.tensors[name] for s in states]), tensor)


@pytest.mark.parametrize("count", [0, 5, BLOCK, 2 * BLOCK + 3])
def test_squares_are_summed_in_float64(count: int) -> None:
    """Within BLOCK roundings of the exact sum, in whatever order a processor adds a block (Higham
    2002, section 3.1); float32 is not."""
    flat = torch.randn(count, generator=torch.Generator().manual_seed(6))
    exact = math.fsum(x * x for x in flat.tolist())
    bound = BLOCK * 2.0**-53
    assert float(square_sum(flat)) == pytest.approx(exact, rel=bound, abs=0.0)
    assert count < BLOCK or float(flat @ flat) != pytest.approx(exact, rel=bound, abs=0.0)


def test_a_coarse_parameter_has_a_master_copy() -> None:
    """Steps too small for bfloat16 add up in the master copy."""
    rule = AdamW(rate=1e-3, decay=0.0, clip=0.0)
    coarse, fine = torch.ones(4, dtype=torch.bfloat16), torch.ones(4)
    single = uniform_precision(torch.float32)
    states, exact = (
        moments(coarse, precision=replace(single, parameter=torch.bfloat16, master=torch.float32)),
        moments(fine, precision=single),
    )
    assert states.master is not None
    assert exact.master is None
    for step in range(1, 9):
        gradient = torch.ones(4)
        update(coarse, gradient, states, step=step, rule=rule, factor=torch.ones(()))
        update(fine, gradient, exact, step=step, rule=rule, factor=torch.ones(()))
    assert torch.equal(states.master, fine)
    assert torch.equal(coarse, fine.bfloat16())


def test_other_optimizers_are_refused() -> None:
    with pytest.raises(StrategyError) as caught:
        require_adamw(Optimizer(family=OptimizerFamily.MUON))
    assert caught.value.rule == "run.optimizer"


@pytest.mark.parametrize(
    "degrees", [(12, 12, 12), (12, 4, 2), (6, 6, 1), (4, 2, 2), (12, 1, 1), (1, 1, 1)]
)
@pytest.mark.parametrize("elements", [0, 5, 24, 101])
def test_pieces_are_nested_and_every_run_has_everything_once(
    degrees: tuple[int, int, int], elements: int
) -> None:
    sharers = ShardGroup(devices=tuple(range(10, 22)), degrees=degrees)
    for level in (1, 2, 3):
        for start in range(10, 22, degrees[level - 1]):
            run = sharers.run(start, level)
            pieces = sorted(sharers.piece(d, elements, level) for d in run)
            assert [i for low, high in pieces for i in range(low, high)] == list(range(elements))
            assert max(high - low for low, high in pieces) <= -(-elements // degrees[level - 1]) + 1
        for device in sharers.devices:
            assert device in sharers.replicas(device, level)
            assert {sharers.piece(d, elements, level) for d in sharers.replicas(device, level)} == {
                sharers.piece(device, elements, level)
            }
            low, high = sharers.piece(device, elements, level)
            if level > 1:
                inner = sharers.piece(device, elements, level - 1)
                assert low <= inner[0]
                assert inner[1] <= high


def shared(holdings: Holdings, device: int) -> list[tuple[HeldParameters, ...]]:
    """What a device holds, as it is shared with others: stage by stage, each parameter in its
    bucket."""
    found: list[tuple[HeldParameters, ...]] = []
    for place in sorted({key[:2] for key in holdings if key[3] == device}):
        held = [holdings[key] for key in sorted(holdings) if key[:2] == place and key[3] == device]
        found += placed_in_buckets(held, layers=(1,) * len(held))[0]
    return found


# Lowering rounds the shares of unlike devices up where they do not divide.
@pytest.mark.parametrize(
    "name",
    cases([name for name in PLANS if "duplicates" not in name and name != "unlike kinds"], 15),
)
def test_devices_hold_as_much_as_lowering_says(name: str) -> None:
    """Elements of each state of the optimizer, of the summed gradient, and of parameters between
    steps: the same integers."""
    small = PLANS[name]
    known = small.known()
    holdings = plan_holdings(
        known.work.stages, model=small.model, length=small.job.sequence_length, islands=None
    )
    for device in known.devices:
        held, rules = shared(holdings, device), shard_rules(small.plan)
        cuts, frozen = (
            of(held, device=device, rules=rules)
            for of in (trainable_parameter_cuts, frozen_parameter_cuts)
        )
        expected = [sum(cut.held(level) for cut in cuts) for level in (1, 2, 3)]
        own = create_device_state(device, known, source=seeded(small.model, seed=0))
        buckets = [b for b in known.buckets if device in b.devices and b.trainable]
        gradients = [b.sharing(device).piece(device, b.elements, 2) for b in buckets]
        unsharded = sum(b.elements for b in buckets if b.number not in own.pieces)
        # Of lanes that shard for themselves pieces need not divide, nor need a layer's: each bucket
        # is rounded by itself.
        uneven = any(
            b.sharing(device).reduction_groups or b.elements % b.sharing(device).degrees[0]
            for b in buckets
        )
        close = len(buckets) if uneven else 0
        states = [
            sum(moment.numel() for moment in moments)
            for moments in zip(*((s.first, s.second) for s in own.states.values()), strict=True)
        ]
        assert states == pytest.approx([expected[0]] * 2, abs=close)
        assert sum(high - low for low, high in gradients) == pytest.approx(expected[1], abs=close)
        pieces = sum(own.pieces[b.number].numel() for b in buckets if b.number in own.pieces)
        assert pieces + unsharded == pytest.approx(expected[2], abs=close)
        apart = sum(cut.held(1) for cut in cuts if cut.apart)
        assert sum(values.numel() for values in own.values.values()) == pytest.approx(
            apart, abs=close
        )
        cut = sum(
            own.pieces[b.number].numel()
            for b in known.buckets
            if device in b.devices and not b.trainable
        )
        assert cut == sum(one.held(3) for one in frozen if one.parameter > 1)


def test_unequal_duplicates_share_states_with_those_who_sum() -> None:
    """Two devices work on the same tokens, a third on others: all three hold a third of the
    states."""
    small = PLANS["unequal duplicates"]
    known = small.known()
    members = [
        create_device_state(d, known, source=seeded(small.model, seed=0)) for d in known.devices
    ]
    for bucket in known.buckets:
        assert (bucket.members, bucket.copies) == ((0, 2), ((0, 1),))
        held = [own.states[bucket.number].first.numel() for own in members]
        assert sum(held) == bucket.elements
        assert max(held) - min(held) <= 1


@pytest.mark.parametrize("name", ["zero-3", "weighted batch", "hybrid zero-3"])
def test_parameters_that_are_sharded_are_not_held_between_steps(name: str) -> None:
    small = PLANS[name]
    known = small.known()
    whole = sum(bucket.elements for bucket in known.buckets if bucket.counted)
    kept = 0
    for device in known.devices:
        own = create_device_state(device, known, source=seeded(small.model, seed=0))
        assert (
            sum(h.value.numel() for boxes in own.store.held.values() for h in boxes.values()) == 0
        )
        kept += sum(piece.numel() for piece in own.pieces.values())
    copies = {"zero-3": 1, "weighted batch": 1, "hybrid zero-3": 2}[name]
    assert kept == copies * whole
