"""Memory of general plans: activations peak along the row of the order."""

from __future__ import annotations

import pytest

from shardwright.simulator.simulate_plan import SimulatedPlan
from tests.simulator.general import run_text, two_stages


def item(found: SimulatedPlan, klass: int, name: str) -> int:
    return dict(found.memory[klass].items)[name]


def saved(found: SimulatedPlan, chunk: int) -> int:
    return int(found.costs.step(0, chunk, 0).saved_bytes[0])


@pytest.mark.parametrize(
    ("order", "held"), [("gpipe", (4, 4)), ("1f1b", (2, 1)), ("zb-h1", (2, 2))]
)
def test_peaks_are_microbatches_in_flight(order: str, held: tuple[int, int]) -> None:
    """GPipe holds all, 1F1B as many as stages are left, ZB-H1 until the weight gradient is done."""
    found = two_stages(order=order)
    assert [item(found, c, "activations") for c in (0, 1)] == [
        held[c] * saved(found, c) for c in (0, 1)
    ]


TABLE = """plan table devices 1
lane main samples 8 in 2
  stages embed+8+head on 0
    all = .
    recompute 0-7: full
order table(main)
  0: {row}
"""


def peak(row: str) -> tuple[int, int, int]:
    """(peak, what a microbatch keeps, what it makes again)."""
    found = run_text(TABLE.format(row=row))
    step = found.costs.step(0, 0, 0)
    return item(found, 0, "activations"), int(step.saved_bytes[0]), int(step.restored_bytes[0])


def test_the_peak_is_where_the_row_has_it() -> None:
    high, kept, _ = peak("0F0 0B0 0F1 0B1")
    assert high == kept
    high, kept, _ = peak("0F0 0F1 0B0 0B1")
    assert high == 2 * kept


def test_early_recompute_lives_from_there_to_its_backward() -> None:
    """One made again before the other's forward: both kept, one restored; and two restored."""
    high, kept, again = peak("0F0 0R0 0F1 0B0 0B1")
    assert again > 0
    assert high == 2 * kept + again
    assert peak("0F0 0F1 0R0 0B0 0R1 0B1")[0] == 2 * kept + again
    assert peak("0F0 0F1 0R0 0R1 0B0 0B1")[0] == 2 * (kept + again)
    assert peak("0F0 0R0 0B0 0F1 0R1 0B1")[0] == kept + again


def test_stages_of_one_device_share_a_row() -> None:
    """Two chunks of a lane on one device: the peak is of both together, parameters are added."""
    stages = (
        "  stages embed+4, 4+head on 0, 0\n    all = .\norder table(main)\n  0: 0F0 1F0 1B0 0B0 0F1"
        " 1F1 1B1 0B1\n"
    )
    found = run_text(f"plan both devices 1\nlane main samples 8 in 2\n{stages}")
    assert item(found, 0, "activations") == saved(found, 0) + saved(found, 1)
    whole = run_text(
        "plan one devices 1\nlane main samples 8 in 2\n  stages embed+8+head on 0\n    all ="
        " .\norder 1f1b(main)\n"
    )
    for name in ("optimizer", "gradients"):
        assert item(found, 0, name) == item(whole, 0, name)
