"""Other values of every field of a small configuration, and what Transformers and we make of each."""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from shardwright.errors import ShardwrightError
from shardwright.execute.interpreter.device import Batch
from shardwright.execute.training.step import run_step, unsplit
from shardwright.execute.weights.read import open_weights
from shardwright.job.training import TrainingJob
from shardwright.model.families.huggingface import load_config, model_from_config
from shardwright.model.ir.graph import Model
from tests.execute.published_configs import batch_of, in_double, logits_of, made, sequences_of
from tests.execute.published_sizes import Config

TOKENS = 7
OF_FILES = frozenset(
    {
        *("architectures", "dtype", "torch_dtype", "transformers_version", "model_type", "_name_or_path", "return_dict"),
        *("output_hidden_states", "output_attentions", "id2label", "label2id", "problem_type", "chunk_size_feed_forward"),
        *("is_encoder_decoder", "use_cache"),
    }
)
"""Of a file and of outputs: nothing of a model."""
OTHERS: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (1, 2, 3, 6),
    float: (0.25, 0.5, 2.0),
    str: ("gelu", "relu", "mish", "none"),
    list: ([0, 1], [1, 1]),
    dict: (
        {"rope_type": "default", "rope_theta": 50.0},
        {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
        {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": 50.0, "factor": 2.0, "original_max_position_embeddings": 16},
        {
            "rope_type": "llama3",
            "rope_theta": 50.0,
            "factor": 2.0,
            "original_max_position_embeddings": 16,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        {"rope_type": "longrope", "rope_theta": 50.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
        {"rope_type": "proportional", "rope_theta": 50.0},
    ),
}
"""Values that are tried, by the type that a field's class says it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A configuration with one field changed: to `value`, or left out."""

    field: str
    value: Any = None
    absent: bool = False

    def __str__(self) -> str:
        return f"no {self.field}" if self.absent else f"{self.field} = {self.value!r}"

    def of(self, config: Config) -> Config:
        section, _, rest = self.field.partition(".")
        if rest:
            return {**config, section: replace(self, field=rest).of(config[section])}
        return {key: value for key, value in {**config, self.field: self.value}.items() if key != self.field or not self.absent}


def flips(config: Config) -> Iterator[Flip]:
    """Every field of a configuration's class, and of its sections', with other values of its types, and without it."""
    for name, values in fields_of(config).items():
        written = config
        *sections, last = name.split(".")
        for section in sections:
            written = written[section]
        if last in written:
            yield Flip(field=name, absent=True)
        for other in values:
            if last not in written or (other, type(other)) != (written[last], type(written[last])):
                yield Flip(field=name, value=other)


def fields_of(config: Config) -> dict[str, tuple[Any, ...]]:
    """Fields that say something of a model, those of a section behind its name and a dot, with values that are tried; of what the class
    does not declare none are known.
    """
    declared = inspect.signature(config_class(config)).parameters
    sections = [name for name in config if name.endswith("_config")]
    values = {name: _values(declared[name].annotation) if name in declared else () for name in (*declared, *config) if name not in sections}
    found = {name: tried for name, tried in values.items() if name not in OF_FILES and not name.endswith("_token_id")}
    return found | {f"{section}.{name}": tried for section in sections for name, tried in fields_of(config[section]).items()}


def _values(annotation: object) -> tuple[Any, ...]:
    """Values of the plain types that an annotation names, as text or as an object, and those that it lists."""
    # What is written as ``RopeParameters`` is an object.
    text = str(annotation)
    words = re.findall(r"\w+", text)
    tried = [other for one, others in OTHERS.items() if one.__name__ in words for other in others]
    return (*tried, *(re.findall(r"'(\w+)'", text) if "Literal" in words else ()), *((None,) if "None" in words else ()))


def config_class(config: Config) -> Any:
    """Of a model, or of a section of one."""
    import transformers

    if "architectures" not in config:
        return type(transformers.AutoConfig.for_model(config["model_type"]))
    return getattr(transformers, config["architectures"][0]).config_class


class Ending(StrEnum):
    """How a configuration ends: Transformers does not take it, we refuse it, the losses are equal, or they are not."""

    UNMADE = "unmade"
    REFUSED = "refused"
    EQUAL = "equal"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a configuration ended. said: why. loss: Transformers', with weights that are drawn by their names and shapes."""

    ending: Ending
    said: str = ""
    loss: float = nan


def verdict(config: Config, folder: Path) -> Verdict:
    """What Transformers and we make of a configuration; `folder` gets its model."""
    ids = torch.randint(0, 6, (2, TOKENS + 1), generator=torch.Generator().manual_seed(3))
    try:
        wanted, batch = _published_loss(config, ids, folder)
    except Exception as error:
        return Verdict(ending=Ending.UNMADE, said=repr(error))
    try:
        model = load_config(folder / "config.json")
        own = model_from_config(config, name=model.name)
        refused = [*model.differs, *own.differs, *(f"{name} is not known" for name in own.unread)]
        if refused:
            return Verdict(ending=Ending.REFUSED, said=refused[0], loss=wanted)
        found = _our_loss(model, batch, folder)
    except ShardwrightError as error:
        said = error.message
        for path in (f"{folder / 'config.json'}: ", f"{folder}/", f"{folder}: "):
            said = said.replace(path, "")
        return Verdict(ending=Ending.REFUSED, said=said, loss=wanted)
    # The longest context changes no loss: where it is not written ours is not known.
    if replace(own, max_context=model.max_context) != model:
        return Verdict(ending=Ending.OTHER, said=f"read as {own.settings}, written as {model.settings}", loss=wanted)
    if abs(found - wanted) > 1e-5 * max(1.0, wanted):
        return Verdict(ending=Ending.OTHER, said=f"loss {found:.9f}, published {wanted:.9f}", loss=wanted)
    return Verdict(ending=Ending.EQUAL, loss=wanted)


def _published_loss(config: Config, ids: torch.Tensor, folder: Path) -> tuple[float, Batch]:
    with _silent(), torch.no_grad():
        published = made(config)
        batch = batch_of(published, ids)
        with in_double(config["architectures"][0]):
            logits = logits_of(published, batch)
        published.save_pretrained(folder)
    return float(functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())), batch


def _our_loss(model: Model, batch: Batch, folder: Path) -> float:
    job = TrainingJob(sequences=sequences_of(model, tokens=TOKENS), global_batch=2)
    weights = open_weights(folder, model=model, dtype=torch.float64)
    return float(run_step(model, job, unsplit(model, job), batch=batch, source=weights).loss)


@contextmanager
def _silent() -> Iterator[None]:
    """Transformers warns of values that are tried here on purpose."""
    log = logging.getLogger("transformers")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
