"""Parts of parameters are views of their bucket, and their gradients too; those that cannot be are
copied."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.device_state.parameter_views_of_flat_buckets import flat_bucket
from shardwright.execute.device_state.stored_parameter_parts import (
    ParameterStore,
    StoredParameter,
    seeded,
)
from shardwright.execute.numerics.base.run_precision import EXACT
from tests.execute.small_plans import PLANS, Small, run_here


def _alone() -> Small:
    return PLANS["zero-3"]


def test_parts_stay_views_of_the_tensors_that_they_began_in() -> None:
    """One device: two steps, and no parameter has moved. Its gradients lie in the bucket too: the
    flat ones are those of the parts."""
    small = _alone()
    known = small.alone()
    _, members = run_here(small, known, steps=1)
    (own,) = members.values()
    (view,) = own.views.values()
    assert view.values is not None
    assert view.gradients is not None
    places = [view.values.data_ptr(), view.gradients.data_ptr()]
    parts = [held for boxes in own.store.held.values() for held in boxes.values()]
    assert (
        sum(held.value.numel() for held in parts) == view.values.numel() == view.gradients.numel()
    )
    for held in parts:
        assert held.room is not None
        assert held.value.untyped_storage().data_ptr() == places[0]
        assert held.room.untyped_storage().data_ptr() == places[1]
        assert held.gradient is None


def test_gradients_of_several_parts_are_added() -> None:
    """Two uses of one box, of which the first has room: with and without a gradient of its own."""
    small = _alone()
    store = ParameterStore(
        model=small.model, source=seeded(small.model, seed=0), settings=small.model.settings
    )
    key = next(iter(small.alone().places))
    first = store.part(key, tuple(((0, n),) for n in seeded(small.model, seed=0)(key).shape))
    second = StoredParameter(box=first.box, value=first.value.clone())
    store.held[key][(*first.box, ())] = second
    view = flat_bucket(((key, (first.box,)),), store)
    view.set_values(view.copy_values())
    assert first.value.data_ptr() == second.value.data_ptr()
    view.allocate_gradients(EXACT.gradient)
    second.gradient = torch.full_like(second.value, 2.0)
    assert torch.equal(view.own_gradients(EXACT.gradient), second.gradient.flatten())
    assert first.room is not None
    first.gradient = first.room.fill_(1.0)
    assert torch.equal(
        view.own_gradients(EXACT.gradient), torch.full_like(second.value, 3.0).flatten()
    )


@pytest.mark.parametrize("gap", [False, True])
def test_a_box_with_gaps_is_copied(gap: bool) -> None:
    """A part of rows 0 to 4 and 6 to 8: a bucket of all of them is its memory, one of rows 1 to 2
    and 6 to 7 is not."""
    small = _alone()
    store = ParameterStore(
        model=small.model, source=seeded(small.model, seed=0), settings=small.model.settings
    )
    key = next(
        k for k in small.alone().places if len(small.alone().places[k][0].parameter.extents) == 2
    )
    width = seeded(small.model, seed=0)(key).shape[1]
    columns = ((0, width),)
    held = store.part(key, (((0, 4), (6, 8)), columns))
    box = (((1, 2), (6, 7)) if gap else ((0, 4), (6, 8)), columns)
    view = flat_bucket(((key, (box,)),), store)
    values = view.copy_values()
    rows = [1, 4] if gap else list(range(6))
    assert torch.equal(values.view(-1, width), held.value[rows])
    view.set_values(values * 2)
    assert view.values is not None
    assert torch.equal(held.value[rows].flatten(), view.values)
    assert (held.value.untyped_storage().data_ptr() == view.values.data_ptr()) is not gap
    view.allocate_gradients(EXACT.gradient)
    assert (held.room is None) is gap
    assert not view.own_gradients(EXACT.gradient).any()
    held.gradient = torch.ones_like(held.value) if held.room is None else held.room.fill_(1.0)
    assert torch.equal(view.own_gradients(EXACT.gradient), torch.ones_like(values))
