"""Names that a question may have: models, accelerators, clusters, instances and runtimes."""

from __future__ import annotations

from typing import Any

from shardwright.hardware.catalog.accelerators_by_name import ACCELERATORS
from shardwright.hardware.catalog.cloud_instances import instance_names
from shardwright.hardware.catalog.published_clusters import published_names
from shardwright.job.training_job_from_flags import PRECISIONS
from shardwright.model.catalog.load_model_by_name import ENTRIES
from shardwright.runtime.runtime_registry import runtime_names
from shardwright.units import GIB


def catalog_document() -> dict[str, Any]:
    """JSON document with the names of the catalogs, for the form of the page."""
    return {
        "models": [entry.names[0] for entry in ENTRIES],
        "accelerators": [
            {
                "name": device.name,
                "vendor": device.vendor,
                "memory_gib": round(device.memory_bytes / GIB, 3),
            }
            for device in ACCELERATORS
        ],
        "clusters": list(published_names()),
        "instances": list(instance_names()),
        "runtimes": list(runtime_names()),
        "precisions": list(PRECISIONS),
    }
