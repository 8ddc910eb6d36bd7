"""Other values of every field of a small configuration, and what Transformers and we make of
each."""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import torch

from shardwright.errors import ShardwrightError
from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    StepResult,
    run_step,
    single_device_plan,
)
from shardwright.execute.training.unsupported_router_settings import require_trainable
from shardwright.execute.weights.read_weights import open_weights
from shardwright.job.training_job import TrainingJob
from shardwright.model.families.huggingface_config import load_config, model_from_config
from shardwright.model.ir.model_graph import Model
from tests.execute.published_configs import all_in_double, batch_of, made, sequences_of
from tests.execute.published_gradients import gradient_differences, published_loss
from tests.execute.published_sizes import Config

TOKENS = 7
PADDING = "pad_token_id"
"""Of tokens, the one that classes compute with."""
OF_FILES = frozenset(
    {
        *(
            "architectures",
            "dtype",
            "torch_dtype",
            "transformers_version",
            "model_type",
            "_name_or_path",
            "return_dict",
        ),
        *(
            "output_hidden_states",
            "output_attentions",
            "id2label",
            "label2id",
            "problem_type",
            "chunk_size_feed_forward",
        ),
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
        {
            "rope_type": "yarn",
            "rope_theta": 50.0,
            "factor": 2.0,
            "original_max_position_embeddings": 16,
        },
        {
            "rope_type": "llama3",
            "rope_theta": 50.0,
            "factor": 2.0,
            "original_max_position_embeddings": 16,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        {
            "rope_type": "longrope",
            "rope_theta": 50.0,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
        },
        {"rope_type": "proportional", "rope_theta": 50.0},
    ),
}
"""Values that are tried, by the type that a field's class says it has."""
SECTION: Config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
"""Value that is tried of a section that the configuration lacks (Gemma 4's ``audio_config``): with
the sizes of its class, Transformers would draw hundreds of millions of weights."""


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
        return {
            key: value
            for key, value in {**config, self.field: self.value}.items()
            if key != self.field or not self.absent
        }


def flips(config: Config) -> Iterator[Flip]:
    """Every field of a configuration's class, and of its sections', with other values of its types,
    and without it."""
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
    """Fields that say something of a model, those of a section behind its name and a dot, with
    values that are tried: of the types that the class declares, of what it does not declare of the
    type that is written.
    """
    declared = inspect.signature(config_class(config)).parameters
    sections = [name for name in config if name.endswith("_config")]
    kinds = {
        name: declared[name].annotation if name in declared else type(config[name])
        for name in (*declared, *config)
    }
    values = {
        name: (SECTION, None) if name.endswith("_config") else _values(kind)
        for name, kind in kinds.items()
        if name not in sections
    }
    others = {name for name in values if name.endswith("_token_id") and name != PADDING}
    found = {name: tried for name, tried in values.items() if name not in OF_FILES | others}
    return found | {
        f"{section}.{name}": tried
        for section in sections
        for name, tried in fields_of(config[section]).items()
    }


def _values(annotation: object) -> tuple[Any, ...]:
    """Values of the plain types that an annotation names, as text or as an object, and those that
    it lists."""
    # What is written as ``RopeParameters`` is an object.
    text = str(annotation)
    words = re.findall(r"\w+", text)
    tried = [other for one, others in OTHERS.items() if one.__name__ in words for other in others]
    return (
        *tried,
        *(re.findall(r"'(\w+)'", text) if "Literal" in words else ()),
        *((None,) if "None" in words else ()),
    )


def config_class(config: Config) -> Any:
    """Of a model, or of a section of one."""
    import transformers

    if "architectures" not in config:
        return type(transformers.AutoConfig.for_model(config["model_type"]))
    return getattr(transformers, config["architectures"][0]).config_class


class Ending(StrEnum):
    """How a configuration ends: Transformers does not take it, we refuse it, we name dropout that
    we leave out, losses and gradients are equal (in training mode, or, where dropout is left out,
    without it), or they are not.
    """

    UNMADE = "unmade"
    REFUSED = "refused"
    LEFT_OUT = "left out"
    EQUAL = "equal"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a configuration ended.

    Args:
        said: why.
        loss, norm: Transformers' loss, with weights that are drawn by their names and shapes, and
            the norm of its gradients.
        model: that is read of what Transformers writes.
    """

    ending: Ending
    said: str = ""
    model: Model | None = None
    loss: float = nan
    norm: float = nan

    def same(self, other: Verdict) -> bool:
        """Neither the loss nor a gradient is another one."""
        return (self.loss, self.norm) == (other.loss, other.norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model of Transformers, what it reads, and its loss outside of training mode."""

    model: Any
    batch: Batch
    still: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Loss of a model of Transformers in training mode, and the norm of its gradients; `random`:
    training mode or its seed change the loss, and these are without it.
    """

    loss: float
    norm: float
    random: bool


TOLERANCE = 1e-5
"""Of losses, and of gradients beside their largest element."""


def verdict(config: Config, folder: Path, *, like: Verdict | None = None) -> Verdict:
    """What Transformers and we make of a configuration in training; `folder` gets its model.

    Args:
        like: of another configuration. Where both read the same model, and Transformers' loss and
            gradients are the same, so are ours.
    """
    ids = torch.randint(0, 6, (2, TOKENS + 1), generator=torch.Generator().manual_seed(3))
    try:
        published = _published(config, ids, folder)
    except Exception as error:
        return Verdict(ending=Ending.UNMADE, said=repr(error))
    try:
        model = load_config(folder / "config.json")
        own = model_from_config(config, name=model.name)
        refused = [*model.differs, *own.differs, *(f"{name} is not known" for name in own.unread)]
        if refused:
            return Verdict(ending=Ending.REFUSED, said=refused[0])
        require_trainable(model, model.settings)
        model = replace(model, name="")
        try:
            trained = _trained(published, config)
        except Exception as error:
            return Verdict(ending=Ending.UNMADE, said=repr(error))
        ended = partial(Verdict, model=model, loss=trained.loss, norm=trained.norm)
        if (
            like is not None
            and like.model == model
            and like.same(ended(ending=like.ending))
            and not trained.random
        ):
            return (
                like
                if own_equals(own, model)
                else ended(ending=Ending.OTHER, said=f"read as {own.settings}")
            )
        # Models of one name are told apart in caches by comparing all of their operators.
        named = replace(model, name=str(folder))
        result = _our_step(named, published.batch, folder)
    except ShardwrightError as error:
        said = error.message
        for path in (f"{folder / 'config.json'}: ", f"{folder}/", f"{folder}: "):
            said = said.replace(path, "")
        return Verdict(ending=Ending.REFUSED, said=said)
    if not own_equals(own, model):
        return ended(
            ending=Ending.OTHER, said=f"read as {own.settings}, written as {model.settings}"
        )
    if bool(model.settings.dropout) != trained.random:
        return ended(
            ending=Ending.OTHER,
            said=f"dropout {model.settings.dropout}, and training is random: {trained.random}",
        )
    if abs(float(result.loss) - trained.loss) > TOLERANCE * max(1.0, trained.loss):
        return ended(
            ending=Ending.OTHER, said=f"loss {float(result.loss):.9f}, published {trained.loss:.9f}"
        )
    for key, difference, largest in gradient_differences(
        published.model, named, result, folder=folder / "gradients"
    ):
        if not difference <= TOLERANCE * (1 + largest):
            return ended(ending=Ending.OTHER, said=f"gradient of {key} differs by {difference:.3g}")
    return ended(ending=Ending.LEFT_OUT if trained.random else Ending.EQUAL)


def own_equals(own: Model, written: Model) -> bool:
    """A configuration reads as Transformers writes it.

    The longest context changes no loss, and some classes do not write it. Losses that no class adds
    are only named in a report: Transformers writes their coefficients where the published file has
    none.
    """
    settings = replace(own.settings, other_losses=written.settings.other_losses)
    return replace(own, name="", max_context=written.max_context, settings=settings) == written


SEEDS = 8
"""Drops of a small layer are seldom enough that one may see none."""


def _published(config: Config, ids: torch.Tensor, folder: Path) -> Published:
    with _silent():
        published = made(config)
        batch = batch_of(published, ids)
        published.save_pretrained(folder)
        with all_in_double(published):
            return Published(model=published, batch=batch, still=_loss(published, batch))


def _trained(published: Published, config: Config) -> Trained:
    """Gradients are those of the model's parameters then."""
    model = published.model
    with _silent(), all_in_double(model):
        model.train()
        random = any(
            _loss(model, published.batch, seed=seed) != published.still
            for seed in range(SEEDS if _drops(config) else 1)
        )
        if random:
            model.eval()
        loss = published_loss(model, dict(published.batch))
        loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = float(torch.stack([grad.double().square().sum() for grad in grads]).sum().sqrt())
    return Trained(loss=float(loss.detach()), norm=norm, random=random)


def _drops(config: Config) -> bool:
    """Some field of a configuration names a share of what is dropped."""
    return any(
        _drops(value) if isinstance(value, dict) else "drop" in name and bool(value)
        for name, value in config.items()
    )


def _loss(published: Any, batch: Batch, *, seed: int = 0) -> float:
    torch.manual_seed(seed)
    with torch.no_grad():
        return float(published_loss(published, dict(batch)))


def _our_step(model: Model, batch: Batch, folder: Path) -> StepResult:
    job = TrainingJob(sequences=sequences_of(model, tokens=TOKENS), global_batch=2)
    weights = open_weights(folder, model=model, dtype=torch.float64)
    return run_step(model, job, single_device_plan(model, job), batch=batch, source=weights)


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
