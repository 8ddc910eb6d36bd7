"""Action rows of 1F1B with a number of microbatches in flight."""

from __future__ import annotations

import numpy as np

from shardwright.hardware.strided_device_list import DeviceList
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.schedules.action_order_arrays import B, F


def one_f_one_b_actions(microbatches: int, in_flight: int) -> list[tuple[int, int]]:
    """(kind, microbatch) actions of a 1F1B row with `in_flight` microbatches in flight.

    First `in_flight` forwards, then backwards and forwards in turns, then the remaining backwards.
    """
    row = [(F, k) for k in range(in_flight)]
    for k in range(microbatches):
        row.append((B, k))
        if k + in_flight < microbatches:
            row.append((F, k + in_flight))
    return row


def one_f_one_b_rows(
    devices: tuple[DeviceList, ...], microbatches: int, *, in_flight: int
) -> ActionRows:
    """Action rows of 1F1B with `in_flight` in flight on every stage, sorted by first device.

    `devices` are the devices of each stage.
    """
    row = one_f_one_b_actions(microbatches, in_flight)
    by_first_device = sorted(range(len(devices)), key=lambda stage: devices[stage][0])
    kind, microbatch = (
        np.tile(np.array(column), len(devices)) for column in zip(*row, strict=True)
    )
    zero = np.zeros(len(kind), dtype=np.int32)
    return ActionRows(
        devices=tuple(devices[stage] for stage in by_first_device),
        row_start=(np.arange(len(devices) + 1) * len(row)).astype(np.int32),
        kind=kind.astype(np.int8),
        lane=zero,
        chunk=np.repeat(np.array(by_first_device), len(row)).astype(np.int32),
        microbatch=microbatch.astype(np.int32),
        slice=zero,
    )
