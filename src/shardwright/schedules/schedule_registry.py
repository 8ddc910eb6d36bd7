"""Registry of the pipeline schedules by name."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final

from shardwright.errors import StrategyError
from shardwright.registry import Registry
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.schedule_protocol import Schedule

SCHEDULES: Final = Registry[Schedule](
    "schedule",
    {
        "gpipe": "shardwright.schedules.gpipe:GPIPE",
        "1f1b": "shardwright.schedules.one_f_one_b:ONE_F_ONE_B",
        "eager-1f1b": "shardwright.schedules.eager_one_f_one_b:EAGER",
        "interleaved-1f1b": "shardwright.schedules.interleaved:INTERLEAVED",
        "breadth-first": "shardwright.schedules.breadth_first:BREADTH_FIRST",
        "looped-bfs": "shardwright.schedules.looped_bfs:LOOPED_BFS",
        "zb-h1": "shardwright.schedules.zb_h1:ZB_H1",
        "zb-h2": "shardwright.schedules.zb_h2:ZB_H2",
        "zb-v": "shardwright.schedules.zb_v:ZB_V",
        "v-half": "shardwright.schedules.v_half:V_HALF",
        "v-min": "shardwright.schedules.v_min:V_MIN",
        "dualpipe": "shardwright.schedules.dualpipe:DUALPIPE",
        "dualpipe-v": "shardwright.schedules.dualpipe_v:DUALPIPE_V",
        "chimera": "shardwright.schedules.chimera:CHIMERA",
        "gems": "shardwright.schedules.gems:GEMS",
        "hanayo": "shardwright.schedules.hanayo:HANAYO",
        "terapipe": "shardwright.schedules.terapipe:TERAPIPE",
        "seq-1f1b": "shardwright.schedules.seq_one_f_one_b:SEQ_ONE_F_ONE_B",
    },
    error=partial(StrategyError, rule="order.schedule"),
)


def schedule(name: str) -> Schedule:
    """Pipeline schedule registered as `name` (``1f1b``); StrategyError for an unknown name."""
    return SCHEDULES.load(name)


@lru_cache(maxsize=256)
def schedule_table(
    name: str, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int
) -> ActionTable:
    """The action table of the schedule with the name `name` (cached).

    The same object for the same arguments.

    See `Schedule.table` for the arguments.
    """
    return schedule(name).table(
        num_ranks=num_ranks,
        chunks_per_rank=chunks_per_rank,
        num_microbatches=num_microbatches,
        **parameters,
    )
