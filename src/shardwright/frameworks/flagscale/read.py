"""Reader of FlagScale's YAML, whose settings are Megatron-LM's arguments in sections."""

from __future__ import annotations

from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.flagscale.settings import SETTINGS
from shardwright.frameworks.launch.build_launch import option_variables
from shardwright.frameworks.launch.framework_detection import FileKind, Signature
from shardwright.frameworks.megatron.argument_names_of_core_fields import without_section
from shardwright.frameworks.megatron.read import USUAL_RUNTIME, Dialect, dialect_reader
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import names
from shardwright.runtime.runtime_registry import load_runtime

_FLAGSCALE_SECTIONS: Final = names(
    "system. model. data. train.system. train.model. system.optimizer. model.optimizer."
)


_VARIABLES: Final = "experiment.envs."


def megatron_arguments(name: str, value: str) -> tuple[tuple[str, str], ...] | None:
    """Megatron-LM's (argument, value) pairs of a FlagScale setting; () if ignored, never None.

    Empty for settings of other sections.

    Raises:
        DataError: stages have different degrees, which a grid cannot express.
    """
    if name.endswith("hetero.enable-hetero") and value == "true":
        raise DataError(
            "stages of unlike degrees (hetero) are no grid",
            hint="a file without the section hetero",
        )
    if name.startswith(_VARIABLES):
        variable = name.removeprefix(_VARIABLES).replace("-", "_").upper()
        return tuple(option_variables(load_runtime(USUAL_RUNTIME), {variable: value}).items())
    if not name.startswith(("system.", "model.", "data.", "train.")):
        return ()
    return ((without_section(name, _FLAGSCALE_SECTIONS), value),)


FLAGSCALE: Final = dialect_reader(
    Dialect(framework="flagscale", arguments_of=megatron_arguments),
    target="flagscale",
    settings=SETTINGS,
    signature=Signature(
        kinds=frozenset({FileKind.YAML}),
        own=frozenset({"system.*", "train.system.*", "experiment.task.backend"}),
        shared=frozenset({"model.micro-batch-size"}),
    ),
)
