"""The model that a launch names beside MODEL: by the size that names of checkpoints and recipes
have.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from shardwright.frameworks.settings.name_lists import name_set
from shardwright.frameworks.settings.verdicts import Setting, Verdict
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
"""The digits of a size with an underscore between."""
ALIKE: Final = (0.6, 1.45)
"""Least and largest share of the named parameters that MODEL has, if it is the one that is named:
names are rounded, and leave out embeddings or what experts share.
"""


def named_parameters(name: str) -> float:
    """The parameters that a name of a model says, such as ``Qwen3-4B`` or ``Mixtral-8x7B``; 0 = it
    says none.

    A function of a module has an underscore for a point behind the module's name:
    ``qwen3.qwen3_1_7b`` is of 1.7 billion, ``llama3_1.llama3_1_8b`` of 8.
    """
    last = name.rpartition("/")[2] or name
    module, _, function = last.rpartition(".")
    family = module.rpartition(".")[2]
    if family and family in function:
        last = _POINT.sub(r"\1.\2", function.partition(family)[2].lstrip("_"))
    found = _SIZE.search(last)
    if found is None:
        return 0.0
    count = float(found[2].replace("p", "."))
    return count * float(found[1] or 1) * (1e9 if found[3] in "bB" else 1e6)


def compared(setting: Setting, model: Model) -> Setting:
    """A setting that names a model, judged by MODEL; others as they are."""
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
