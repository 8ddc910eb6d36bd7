"""MaxText's own configuration without JAX: a program that reads {"file", "devices", "slices"} and
says what was parsed, as JSON.

JAX is asked only for devices, flax for decorators, and the utilities for the number of slices; all
are answered here.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

STOOD_IN = (
    *(
        "jax",
        "jax.numpy",
        "jax.sharding",
        "jax.tree_util",
        "jax.experimental",
        "jax.experimental.compilation_cache",
        "flax",
        "flax.struct",
    ),
    *(
        f"maxtext.utils.{name}"
        for name in ("gcs_utils", "elastic_utils", "max_logging", "max_utils")
    ),
    *("maxtext.inference.inference_utils", "maxtext.configs.pyconfig_deprecated"),
)
ASKED = (
    "model_name",
    "global_batch_size_to_train_on",
    "num_pipeline_microbatches",
    "ici_parallelism",
    "dcn_parallelism",
    "mesh_axes",
)


def stand_in(*, devices: int, slices: int) -> None:
    """Modules of MaxText without what its package imports, and of JAX what the configuration
    asks."""
    found = find_spec("maxtext")
    assert found is not None
    assert found.submodule_search_locations is not None
    root = Path(found.submodule_search_locations[0])
    for name, folder in (
        ("maxtext", root),
        *((f"maxtext.{part}", root / part) for part in ("utils", "configs", "common", "inference")),
    ):
        module: Any = ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
        if "." in name:
            setattr(sys.modules["maxtext"], name.partition(".")[2], module)
    for name in STOOD_IN:
        sys.modules[name] = MagicMock()
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    sys.modules["jax"].devices = lambda *_: [object()] * devices  # type: ignore[attr-defined]
    sys.modules["maxtext.utils.max_utils"].get_num_slices = lambda _: slices  # type: ignore[attr-defined]
    sys.modules["maxtext.utils.elastic_utils"].elastic_enabled = lambda *_, **__: False  # type: ignore[attr-defined]


def main() -> None:
    """Parse and check."""
    asked = json.load(sys.stdin)
    stand_in(devices=asked["devices"], slices=asked["slices"])
    from maxtext.configs import pyconfig

    beside = (
        "run_name=run",
        "base_output_directory=/tmp/run",
        "dataset_type=synthetic",
        "steps=10",
    )
    found = pyconfig._initialize_pydantic(["train", asked["file"], *beside])
    sys.stdout.write("\n" + json.dumps({name: getattr(found, name) for name in ASKED}) + "\n")


if __name__ == "__main__":
    main()
