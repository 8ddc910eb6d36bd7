"""Catalog of accelerators by name; every number of an entry has an origin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.non_nvidia_accelerators import AMD, GOOGLE, OTHERS
from shardwright.hardware.catalog.nvidia_hbm_gpus_from_ampere_on import NVIDIA
from shardwright.hardware.catalog.nvidia_volta_turing_and_gddr_gpus import NVIDIA_SMALL

ACCELERATORS: Final[tuple[Accelerator, ...]] = NVIDIA + NVIDIA_SMALL + AMD + GOOGLE + OTHERS


def name_key(name: str) -> str:
    """Name for comparison: without case, spaces, brackets, hyphens, underscores and dots."""
    return re.sub(r"[-_.\s()]+", "", name.casefold())


def _index() -> Mapping[str, Accelerator]:
    """Accelerators by the key of each name and alias."""
    entries = {name_key(alias): a for a in ACCELERATORS for alias in a.aliases}
    entries.update({name_key(a.name): a for a in ACCELERATORS})
    return MappingProxyType(entries)


_BY_KEY: Final = _index()
MAX_NAME: Final = 200
_VENDORS: Final = frozenset(
    [
        "nvidia",
        "tesla",
        "geforce",
        "amd",
        "instinct",
        "intel",
        "google",
        "cloud",
        "huawei",
        "ascend",
        "gpu",
        "accelerator",
        "oam",
        "mega",
    ]
)
_MEMORY: Final = re.compile(r"hbm[0-9]?e?")
_SOCKET: Final = re.compile(r"^sxm[2-6]$")


def accelerator_names() -> tuple[str, ...]:
    """Names of all accelerators, sorted; aliases are not listed."""
    return tuple(sorted(a.name for a in ACCELERATORS))


def find_accelerator(name: str) -> Accelerator | None:
    """Find an accelerator by its name, alias or driver name; None if there is none.

    Case and punctuation do not matter: ``NVIDIA A100-SXM4-80GB`` and ``NVIDIA H100 80GB HBM3`` are
    driver names.
    """
    return _BY_KEY.get(name_key(name)) or _BY_KEY.get(name_key(" ".join(driver_words(name))))


def driver_words(name: str) -> list[str]:
    """Lower-case words of a driver's device name without vendors and memory kinds; SXM5 as sxm.

    Vendors, kinds of memory and the form OAM are left out, and sockets lose their generation.
    """
    words = re.split(r"[-_\s()]+", name.casefold()[:MAX_NAME])
    return [
        _SOCKET.sub("sxm", word)
        for word in words
        if word not in _VENDORS and not _MEMORY.fullmatch(word)
    ]


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of a name or alias; ClusterError with a hint if there is none."""
    found = find_accelerator(name)
    if found is None:
        shown = name if len(name) <= 60 else f"{name[:60]}..."
        raise ClusterError(
            f"unknown accelerator {shown!r}", hint=nearest(shown, accelerator_names())
        )
    return found
