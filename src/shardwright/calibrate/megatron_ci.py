"""What Megatron-LM's functional tests set and its golden values do not print: decided by a test's name, from its own configuration.

Each rule is what ``model_config.yaml`` says of the tests that it names (NVIDIA/Megatron-LM, tests/functional_tests/test_cases; 27 of
the files were read, at least one for each rule), never what was measured. Release tests have recipes of their own and are not covered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from shardwright.calibrate.measurements import Measurement

_FUSED: Final = "megatron-core-0.12-plain"
_UNFUSED: Final = "megatron-core-0.12-unfused"
_LOCAL: Final = "megatron-core-0.12-local"
_FUSED_LOSS: Final = "megatron-core-0.12-fused-loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSettings:
    """What one test runs with.

    Args:
        runtime: name. dropout: hidden and attention dropout at Megatron-LM's default of 0.1.
        reason: the flags in the configuration that say so.
    """

    runtime: str
    dropout: bool
    reason: str


# (pattern of the test's name, settings), the first that fits
_RULES: Final = (
    ("gpt/*_cp[24]*", TestSettings(runtime=_FUSED, dropout=False, reason="attention-backend flash, both dropouts 0")),
    ("*cross_entropy_loss_fusion*", TestSettings(runtime=_FUSED_LOSS, dropout=True, reason="cross-entropy-loss-fusion")),
    ("*memory_speed*", TestSettings(runtime=_FUSED, dropout=True, reason="transformer_engine, no attention-backend")),
    ("moe/gpt3_mcore_tp2_cp2_*_te_*", TestSettings(runtime=_FUSED, dropout=True, reason="transformer_engine, attention-backend flash")),
    ("*mcore_te_*resume*", TestSettings(runtime=_FUSED, dropout=True, reason="transformer_engine, no attention-backend")),
    ("*mcore_te_*", TestSettings(runtime=_UNFUSED, dropout=True, reason="transformer_engine, attention-backend unfused")),
    ("*", TestSettings(runtime=_LOCAL, dropout=True, reason="transformer-impl local")),
)
_GB200: Final = "GB200"
_ETP: Final = re.compile(r"_etp([0-9]{1,2})")
_EXPERT_WIDTH: Final = re.compile(r"moe-ffn-hidden-size=([0-9]{1,6})")
_SHARED_WIDTH: Final = re.compile(r"moe-shared-expert-intermediate-size=([0-9]{1,6})")


def settings_of(row: Measurement) -> TestSettings:
    """Runtime and dropout of a test."""
    return next(settings for pattern, settings in _RULES if fnmatchcase(row.table_or_row, pattern))


def devices_of(row: Measurement) -> int:
    """Devices of a test that prints none: 0 = unknown.

    On GB200 two nodes of four, one where the test's name says ``1node`` (tests/test_utils/recipes/gb200/*.yaml: nodes, gpus). Release
    tests are started by recipes of their own.
    """
    if row.gpu != _GB200 or "_release" in row.table_or_row:
        return 0
    return 4 if "_1node" in row.table_or_row else 8


def optimizer_instances(row: Measurement) -> int:
    """``num-distributed-optimizer-instances``: copies of the sharded states."""
    return 2 if "multi_dist_optimizer_instances" in row.table_or_row else 1


def expert_tensor_parallel(row: Measurement) -> int:
    """``expert-tensor-parallel-size``: as the test's name says, else the tensor parallel degree (Megatron-LM's default)."""
    found = _ETP.search(row.table_or_row)
    return int(found.group(1)) if found else row.tp or 1


def expert_widths(row: Measurement) -> tuple[int, int]:
    """Feed-forward width of an expert (four times hidden unless a flag says otherwise), and of the shared one (0 = none)."""
    width, shared = _EXPERT_WIDTH.search(row.notes), _SHARED_WIDTH.search(row.notes)
    return int(width.group(1)) if width else row.ffn_hidden or 4 * (row.hidden or 0), int(shared.group(1)) if shared else 0
