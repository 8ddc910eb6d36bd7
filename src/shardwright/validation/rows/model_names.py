"""Which model a row's name means: one of the catalog, beside words of the run, or a decoder of a
usual form with the row's own sizes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from shardwright.hardware.catalog.catalog import find_accelerator
from shardwright.model.catalog.catalog import ENTRIES, is_catalog_name
from shardwright.model.catalog.entry import CatalogEntry
from shardwright.runtime.registry import runtime_names
from shardwright.validation.rows.model_from_sizes import GPT, LLAMA, MIXTURE, NEMOTRON
from shardwright.validation.tables.measured_rows import Measurement

MAX_NAME: Final = 200
NEAR: Final = 0.1
"""A size in a name is a model's if it is within this part of its parameters."""
_MODELS: Final = frozenset(name for entry in ENTRIES for name in entry.names)
_RUN: Final = frozenset(
    [
        *(
            "bf16",
            "fp16",
            "fp32",
            "fp8",
            "fp4",
            "nvfp4",
            "mxfp8",
            "mxfp4",
            "mx",
            "cs",
            "sc",
            "int8",
            "mixed",
            "amp",
        ),
        *(
            "pretrain",
            "pretraining",
            "training",
            "train",
            "bench",
            "benchmark",
            "tokendrop",
            "dropless",
            "release",
        ),
        *("model", "gpu", "gpus", "nodes", "chat", "instruct", "base", "hf"),
        *(word for name in runtime_names() if name not in _MODELS for word in name.split("-")),
    ]
)
"""Words of a run: precisions, what it was for, and what its framework is called."""
_VERSION: Final = re.compile(r"v?[0-9]{2}\.[0-9]{1,2}(\.[0-9]{1,2})?")
_SIZE: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)([mbt])")
_UNIT: Final = {"m": 1e6, "b": 1e9, "t": 1e12}
_FORMS: Final = (
    (re.compile(r"nemotron"), NEMOTRON),
    (re.compile(r"gpt(?!.?oss)|\bopt\b|\bmpt\b|bloom|megatron|turing|mt-nlg"), GPT),
    (re.compile(r"llama|mistral|qwen|\byi\b|internlm|baichuan|olmo|smollm"), LLAMA),
)


def meant(row: Measurement) -> tuple[str, str]:
    """(catalog name or form of a decoder, why) where the name of a row is none of the catalog's;
    ("", "") where it is, or nothing fits.

    Words of the run are not part of a name: precisions, devices, frameworks, releases. A size may
    stand beside it, or lack, if it is the model's. Where no model of the catalog is meant, and the
    row says its sizes, it is the decoder of its family's form; a family that is not known has gated
    experts, or by its feed-forward width the form of GPT (4 x hidden, as many key heads) or Llama.
    """
    if row.architecture or row.config or row.model_name.strip() == "":
        return "", ""
    found = _catalogued(row.model_name[:MAX_NAME])
    if found is not None and row.hidden in (None, found.config.get("hidden_size", row.hidden)):
        name = found.names[0]
        return (
            ("", "")
            if is_catalog_name(row.model_name)
            else (name, f"what {row.model_name!r} means")
        )
    if not (row.layers and row.hidden and row.heads and row.vocab):
        return "", ""
    form = _form(row)
    return form, f"sizes of the row; no model of the catalog is {row.model_name!r} of these sizes"


def catalogued(name: str) -> str:
    """The catalog's name of the model that a name means, with words of the run, or of an
    organisation before a slash; "" for none.
    """
    found = _catalogued(name[:MAX_NAME].rsplit("/", 1)[-1])
    return found.names[0] if found else ""


def _form(row: Measurement) -> str:
    if (row.experts or 0) > 1:
        return MIXTURE
    known = next((form for pattern, form in _FORMS if pattern.search(row.model_name.lower())), "")
    if known and not (known in (LLAMA, NEMOTRON) and not row.ffn_hidden):
        return known
    square = row.ffn_hidden in (None, 4 * (row.hidden or 0)) and row.kv_heads in (None, row.heads)
    return GPT if square else LLAMA


def _catalogued(name: str) -> CatalogEntry | None:
    """The entry that a name means; None if none is, or several are."""
    words = _words(name)
    entries = _by_key()
    if "".join(words) in entries:
        return entries["".join(words)]
    kept = [
        word
        for word in words
        if word not in _RUN and not _VERSION.fullmatch(word) and find_accelerator(word) is None
    ]
    if "".join(kept) in entries:
        return entries["".join(kept)]
    size = next((match for word in reversed(kept) if (match := _SIZE.fullmatch(word))), None)
    if size is None or not float(size[1]):
        return None
    parameters = float(size[1]) * _UNIT[size[2]]
    bare = "".join(word for word in kept if word != size[0])
    return next(
        (
            entry
            for key, entry in entries.items()
            if key == bare and abs(entry.parameters / parameters - 1) <= NEAR
        ),
        None,
    )


@cache
def _by_key() -> dict[str, CatalogEntry]:
    return {_key(name): entry for entry in ENTRIES for name in entry.names}


def _key(name: str) -> str:
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[-_\s/(),|]+", name.lower()) if word]
