"""Keys that are passed round under PyTorch's autograd: the core of one device, messages of the
interpreter, kept tensors, their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch.distributed has no gloo here", allow_module_level=True)

from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    index_tensor,
)
from shardwright.execute.numerics.registry import numerics_of
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.in_process_transport import run_in_process
from tests.execute.lockstep import alone, place_of
from tests.execute.ring_ranks import CORES, DEAL, LENGTH, RANKS, core_of, inputs_of, work
from tests.execute.started import finished, started


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """What each rank found, by core."""
    folder = tmp_path_factory.mktemp("ring")
    with finished(started(work, ranks=RANKS, arguments=(str(folder),)), folder) as found:
        yield found


@pytest.mark.parametrize("variant", CORES)
def test_a_ring_finds_what_one_device_does(ranks: list[Any], variant: str) -> None:
    operator = core_of(variant)
    place, numerics = place_of(operator, length=LENGTH), numerics_of(operator)
    *inputs, grad = inputs_of(operator)
    outputs, saved = alone(numerics.forward(place, (tuple(inputs),), {}))
    (back,) = alone(numerics.input_grad(place, saved, (grad,), {}))
    for rank, found in enumerate(ranks):
        for whole, own, again in zip(
            (*outputs, *back), found[variant].tensors, found[variant].again, strict=True
        ):
            torch.testing.assert_close(
                own, whole[:, index_tensor(DEAL[rank], like=own)], rtol=1e-12, atol=1e-12
            )
            assert torch.equal(own, again)


@pytest.mark.parametrize("variant", CORES)
def test_messages_are_those_of_the_interpreter(ranks: list[Any], variant: str) -> None:
    operator, trace = core_of(variant), CommunicationRecord()
    more: dict[str, Any] = {
        "groups": {"ring": tuple(range(RANKS))},
        "ring_positions": dict(enumerate(DEAL)),
    }
    places = {
        d: place_of(operator, length=LENGTH, device=d, positions=DEAL[d], **more)
        for d in range(RANKS)
    }
    numerics, inputs = numerics_of(operator), inputs_of(operator)
    own = {d: [one[:, index_tensor(DEAL[d], like=one)] for one in inputs] for d in places}
    made = run_in_process(
        {d: numerics.forward(place, (tuple(own[d][:3]),), {}) for d, place in places.items()},
        trace=trace,
    )
    run_in_process(
        {
            d: numerics.input_grad(place, made[d][1], (own[d][3],), {})
            for d, place in places.items()
        },
        trace=trace,
    )
    for rank, found in enumerate(ranks):
        assert found[variant].sent == sum(one.sent for one in trace.records if one.device == rank)


@pytest.mark.parametrize("variant", CORES)
def test_what_is_kept_is_a_ranks_own(ranks: list[Any], variant: str) -> None:
    """Queries, keys, values, the output, and a logarithm of a denominator a head and query."""
    (*widths, out), heads = (e.size for e in (*core_of(variant).reads, *core_of(variant).writes)), 4
    for found in ranks:
        rows = found[variant].tensors[0].shape[:2]
        assert found[variant].kept == [
            *((*rows, width) for width in (*widths, out)),
            (rows[0], heads, rows[1]),
        ]


@pytest.mark.parametrize("variant", CORES)
def test_the_next_keys_are_on_their_way_while_these_are_met(ranks: list[Any], variant: str) -> None:
    forward = ["passed", "attend_to_keys"] * (RANKS - 1) + ["attend_to_keys"]
    # Keys, then the gradients of those before: each behind what it is a sum of.
    backward = ["passed", "attend_to_keys_backward"] * RANKS + ["passed"]
    for found in ranks:
        assert found[variant].events == forward + backward
