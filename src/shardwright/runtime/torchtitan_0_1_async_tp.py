"""torchtitan of late 2024 with asynchronous tensor parallelism."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import torchtitan_0_1, torchtitan_async_tp
from shardwright.runtime.facts import derive
from shardwright.runtime.runtime import TpOverlap

RUNTIME: Final = derive(
    torchtitan_0_1.RUNTIME,
    name="torchtitan-0.1-async-tp",
    tp_overlap=TpOverlap.ASYNC,
    facts=tuple(fact for fact in torchtitan_async_tp.RUNTIME.facts if fact.field == "tp_overlap"),
)
