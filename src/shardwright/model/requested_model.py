"""The model that a request names: read, with what of it is trained and what teaches it."""

from __future__ import annotations

from shardwright.model.catalog.models_by_name import load_model
from shardwright.model.distillation import taught
from shardwright.model.ir.model_graph import Model
from shardwright.model.trained_parameters import trained


def asked_model(name: str, *, train: str = "", teacher: str = "") -> Model:
    """`name` as `model.trained.trained` makes it of `train`, beside `teacher` (see `model.taught`;
    empty = there is none).

    Args:
        name, teacher: catalog names or paths of a config.json.

    Raises:
        ModelError: a model cannot be read, or the teacher does not fit the model. UsageError:
        `train` cannot be read.
    """
    model = trained(load_model(name), train)
    return taught(model, load_model(teacher)) if teacher else model
