"""Check of a checkpoint's name in a launch against MODEL, by the size in the name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from shardwright.frameworks.settings.setting_verdicts import LaunchSetting, Verdict
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.model.ir.model_graph import Model

NAMES: Final = name_set(
    "model-name-or-path base-model model model-id-or-path"
    " actor-rollout-ref.model.path model.partial-pretrain model.-component-"
    " model.flavor modules.pre-trainer.model model.name model-name model.path"
    " model.model-path"
)
"""Settings that name a model."""
_SIZE: Final = re.compile(
    r"(?<![A-Za-z0-9.])(?:([0-9]{1,3})x)?([0-9]{1,4}(?:\.[0-9]{1,3})?|[0-9]p[0-9])([bBmM])(?![A-Za-z0-9])"
)
_POINT: Final = re.compile(r"^([0-9]{1,2})_([0-9]{1,2})(?=[bBmM](?![A-Za-z0-9]))")
"""Size with an underscore for the decimal point, such as ``1_7b``."""
ALIKE: Final = (0.6, 1.45)
"""Smallest and largest ratio of MODEL's parameters to the size in a name that still counts as the
same model: names are rounded, and leave out embeddings or parameters that experts share.
"""


def named_parameters(name: str) -> float:
    """Number of parameters in a model's name: 4e9 for ``Qwen3-4B``, 56e9 for ``8x7B``; 0.0 if none.

    In a function's name behind its module's name, an underscore is the decimal point:
    ``qwen3.qwen3_1_7b`` is of 1.7 billion, ``llama3_1.llama3_1_8b`` of 8.
    """
    last = name.rpartition("/")[2] or name
    module, _, function = last.rpartition(".")
    family = module.rpartition(".")[2]
    if family and family in function:
        last = _POINT.sub(r"\1.\2", function.partition(family)[2].lstrip("_"))
    match = _SIZE.search(last)
    if match is None:
        return 0.0
    count = float(match[2].replace("p", "."))
    return count * float(match[1] or 1) * (1e9 if match[3] in "bB" else 1e6)


def compared_checkpoint(setting: LaunchSetting, model: Model) -> LaunchSetting:
    """Checkpoint setting as OF_THE_MODEL or DIFFERENT by the size in its name; else unchanged."""
    if setting.name not in NAMES or setting.verdict not in (Verdict.IGNORED, Verdict.UNKNOWN):
        return setting
    named = named_parameters(setting.value)
    if not named:
        return setting
    if ALIKE[0] <= model.num_parameters / named <= ALIKE[1]:
        return replace(setting, verdict=Verdict.OF_THE_MODEL, means="")
    return replace(
        setting,
        verdict=Verdict.DIFFERENT,
        means=f"MODEL has {model.num_parameters / 1e9:.3g} billion parameters",
    )
