"""Load the model of a request, with its trained parameters and its teacher."""

from __future__ import annotations

from shardwright.model.add_frozen_teacher_to_model import with_teacher
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model


def requested_model(name: str, *, train: str = "", teacher: str = "") -> Model:
    """Load a model by name, with the parameters that `train` selects and an optional teacher.

    See `freeze_parameters_or_add_lora.trained` and `add_frozen_teacher_to_model.with_teacher`.

    Args:
        name, teacher: catalog names or paths of a config.json.

    Raises:
        ModelError: a model cannot be read, or the teacher does not fit the model. UsageError:
        `train` cannot be read.
    """
    model = trained(load_model(name), train)
    return with_teacher(model, load_model(teacher)) if teacher else model
