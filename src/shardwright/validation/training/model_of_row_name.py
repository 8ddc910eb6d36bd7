"""Find the catalog model, or the form of decoder, that a table row's model name means.

A name may have words about the run beside it: precisions, devices, frameworks, releases.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.model.catalog.load_model_by_name import ENTRIES, is_catalog_name
from shardwright.model.catalog.published_model_record import CatalogEntry
from shardwright.runtime.runtime_registry import runtime_names
from shardwright.validation.training.row_model_from_config_catalog_or_sizes import (
    GPT,
    LLAMA,
    MIXTURE,
    NEMOTRON,
)
from shardwright.validation.training.training_table_columns import TrainingMeasurement

MAX_NAME: Final = 200
NEAR: Final = 0.1
"""Largest relative difference between a size in a name and the parameters of the model."""
_MODELS: Final = frozenset(name for entry in ENTRIES for name in entry.names)
_RUN: Final = frozenset(
    re.findall(
        r"\w+",
        "bf16 fp16 fp32 fp8 fp4 nvfp4 mxfp8 mxfp4 mx cs sc int8 mixed amp pretrain pretraining"
        " training train bench benchmark tokendrop dropless release model gpu gpus nodes chat"
        " instruct base hf",
    )
) | {word for name in runtime_names() if name not in _MODELS for word in name.split("-")}
"""Words about a run: precisions, its purpose, and names of frameworks."""
_VERSION: Final = re.compile(r"v?[0-9]{2}\.[0-9]{1,2}(\.[0-9]{1,2})?")
_SIZE: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)([mbt])")
_UNIT: Final = {"m": 1e6, "b": 1e9, "t": 1e12}
_FORMS: Final = (
    (re.compile(r"nemotron"), NEMOTRON),
    (re.compile(r"gpt(?!.?oss)|\bopt\b|\bmpt\b|bloom|megatron|turing|mt-nlg"), GPT),
    (re.compile(r"llama|mistral|qwen|\byi\b|internlm|baichuan|olmo|smollm"), LLAMA),
)


def implied_model(row: TrainingMeasurement) -> tuple[dict[str, Any], str]:
    """({`architecture`}, reason) that a row's model name implies; empty if none or not needed.

    The architecture is a catalog name or a form of decoder. Nothing is implied if the name is a
    catalog name, or if neither fits.

    A size beside the name must be the model's. Where the name means no model of the
    catalog, and the row has its sizes, the model is a decoder of its family's form; an unknown
    family has gated experts, or by its feed-forward width the form of GPT (4 x hidden, as many key
    heads) or of Llama.
    """
    if row.architecture or row.config or row.model_name.strip() == "":
        return {}, ""
    entry = _catalog_entry(row.model_name[:MAX_NAME])
    if entry is not None and row.hidden in (None, entry.config.get("hidden_size", row.hidden)):
        if is_catalog_name(row.model_name):
            return {}, ""
        return {"architecture": entry.names[0]}, f"what {row.model_name!r} means"
    if not (row.layers and row.hidden and row.heads and row.vocab):
        return {}, ""
    reason = f"sizes of the row; no model of the catalog is {row.model_name!r} of these sizes"
    return {"architecture": _decoder_form(row)}, reason


def catalog_name(name: str) -> str:
    """Catalog name of the model that `name` means; empty for none.

    An organisation before a slash is ignored.
    """
    entry = _catalog_entry(name[:MAX_NAME].rsplit("/", 1)[-1])
    return entry.names[0] if entry else ""


def _decoder_form(row: TrainingMeasurement) -> str:
    """Form of decoder of a name outside the catalog: experts, family, or widths and heads."""
    if (row.experts or 0) > 1:
        return MIXTURE
    name = row.model_name.lower()
    form = next((form for pattern, form in _FORMS if pattern.search(name)), "")
    if form and not (form in (LLAMA, NEMOTRON) and not row.ffn_hidden):
        return form
    has_gpt_sizes = row.ffn_hidden in (None, 4 * (row.hidden or 0))
    return GPT if has_gpt_sizes and row.kv_heads in (None, row.heads) else LLAMA


def _catalog_entry(name: str) -> CatalogEntry | None:
    """Catalog entry that a name means, by words or by family and near size; else None."""
    words = _words(name)
    entries = _entries_by_key()
    if "".join(words) in entries:
        return entries["".join(words)]
    of_model = [
        word
        for word in words
        if word not in _RUN and not _VERSION.fullmatch(word) and find_accelerator(word) is None
    ]
    if "".join(of_model) in entries:
        return entries["".join(of_model)]
    size = next((match for word in reversed(of_model) if (match := _SIZE.fullmatch(word))), None)
    if size is None or not float(size[1]):
        return None
    parameters = float(size[1]) * _UNIT[size[2]]
    entry = entries.get("".join(word for word in of_model if word != size[0]))
    is_near = entry is not None and abs(entry.parameters / parameters - 1) <= NEAR
    return entry if is_near else None


@cache
def _entries_by_key() -> dict[str, CatalogEntry]:
    """Joined words of a name -> catalog entry."""
    return {"".join(_words(name)): entry for entry in ENTRIES for name in entry.names}


def _words(name: str) -> list[str]:
    """Lower-case words and numbers of a model name, in order."""
    return [word for word in re.split(r"[-_\s/(),|]+", name.lower()) if word]
