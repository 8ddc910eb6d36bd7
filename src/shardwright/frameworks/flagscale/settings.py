"""Table of FlagScale's own settings, beside sections of Megatron-LM's arguments.

Source of the fields: FlagScale 0.8.0, flagscale/train/arguments.py (`pre_validate_args`),
flagscale/train/hetero/parallel_context.py, flagscale/runner/runner_train.py and runner/utils.py
(`flatten_dict_to_args`), and the arguments of its Megatron-LM.
"""

from __future__ import annotations

from typing import Final

from shardwright.frameworks.settings.setting_table import KnownSetting, SettingTable, setting_table
from shardwright.frameworks.settings.setting_values_from_and_to_text import SWITCH

SETTINGS: Final[SettingTable] = setting_table(
    *(
        KnownSetting(f"system.precision.{half}", "number format", half, SWITCH)
        for half in ("bf16", "fp16")
    ),
    version="0.8.0",
)
