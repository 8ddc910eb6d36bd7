"""Catalog of state-space, hybrid, sparse-attention, encoder-decoder and vision models."""

from __future__ import annotations

from typing import Final

from shardwright.model.catalog_entry import CatalogEntry

EXTRA_ENTRIES: Final[tuple[CatalogEntry, ...]] = ()
