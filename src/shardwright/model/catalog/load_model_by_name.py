"""Load a model by its catalog name, or from the path of a ``config.json``."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from shardwright.errors import ModelError, nearest
from shardwright.model.catalog.dense_models import DENSE_ENTRIES
from shardwright.model.catalog.gpt_opt_bloom_falcon_models import GPT_ENTRIES
from shardwright.model.catalog.hybrid_sparse_and_encoder_models import EXTRA_ENTRIES
from shardwright.model.catalog.mixture_of_experts_models import MOE_ENTRIES
from shardwright.model.catalog.published_model_record import CatalogEntry
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.ir.model_graph import Model

ENTRIES: Final[tuple[CatalogEntry, ...]] = (
    *DENSE_ENTRIES,
    *GPT_ENTRIES,
    *MOE_ENTRIES,
    *EXTRA_ENTRIES,
)
_BY_NAME: Final[dict[str, CatalogEntry]] = {
    name: entry for entry in ENTRIES for name in entry.names
}


def catalog_entry(name: str) -> CatalogEntry:
    """Catalog entry of a name in any case, with underscores or ``organisation/``; else ModelError.

    Raises:
        ModelError: the catalog has no such name; the hint names similar names.
    """
    entry = _find_entry(name)
    if entry is None:
        hint = nearest(_catalog_spelling(name)[:100], _BY_NAME)
        raise ModelError(
            f"no model is called {name[:100]!r}", hint=f"{hint} (or give the path of a config.json)"
        )
    return entry


def is_catalog_name(name: str) -> bool:
    """True if the catalog has a name, in any case, with underscores or ``organisation/``."""
    return _find_entry(name) is not None


def load_model(name_or_path: str) -> Model:
    """Load a model by catalog name, ``config.json``, or folder with one; ModelError if not found.

    A catalog name wins over a file of that name.

    Raises:
        ModelError: the text is neither a catalog name nor a usable file.
    """
    entry = _find_entry(name_or_path)
    if entry is not None:
        return _catalog_model(entry.names[0])
    path = Path(name_or_path)
    try:
        folder = path.is_dir()
        file = folder or path.is_file()
    except (OSError, ValueError):
        folder = file = False
    if folder:
        return load_config(path / "config.json")
    # An organisation/name that is not in the catalog is far more often a typo than a file.
    looks_like_file = name_or_path.endswith(".json") or name_or_path.count(os.sep) > 1
    if file or looks_like_file:
        return load_config(path)
    return _catalog_model(catalog_entry(name_or_path).names[0])


@lru_cache(maxsize=256)
def _catalog_model(name: str) -> Model:
    """Model of the catalog's entry of a name, built once (cached)."""
    return model_from_config(_BY_NAME[name].config, name=name)


def _find_entry(name: str) -> CatalogEntry | None:
    """Catalog entry of a name in any case, with underscores or ``organisation/``; else None."""
    spelled = _catalog_spelling(name)
    return _BY_NAME.get(spelled) or (
        _BY_NAME.get(spelled.partition("/")[2]) if spelled.count("/") == 1 else None
    )


def _catalog_spelling(name: str) -> str:
    """Spell a name as the catalog does: lower case, hyphens for underscores and spaces."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")
