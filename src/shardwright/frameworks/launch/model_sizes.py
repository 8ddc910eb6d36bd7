"""A launch's settings of its model, compared with MODEL: sizes by name, and names of published
models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.export.published_models import published
from shardwright.frameworks.settings.verdicts import Setting, Verdict
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import Arguments
from shardwright.strategy.grid.model_counts import grid_facts, num_layers

TRANSFORMERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hidden-size": "width",
        "d-model": "width",
        "n-embd": "width",
        "num-hidden-layers": "layers",
        "n-layer": "layers",
        "num-attention-heads": "heads",
        "n-head": "heads",
        "num-key-value-heads": "heads of keys",
        "intermediate-size": "width of the feed-forward",
        "num-local-experts": "experts",
        "num-experts": "experts",
    }
)
"""Field of a configuration of Transformers -> the size that it is."""
MAXTEXT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "base-emb-dim": "width",
        "base-num-decoder-layers": "layers",
        "base-num-query-heads": "heads",
        "base-num-kv-heads": "heads of keys",
        "base-mlp-dim": "width of the feed-forward",
        "num-experts": "experts",
    }
)
"""Setting of MaxText -> the size that it is."""
_FAMILIES: Final = ("is-mamba-config", "ssm-cfg", "mamba", "mamba2")
"""Settings of a model of state-space layers."""


def sizes_of(model: Model) -> dict[str, int]:
    """The sizes of a model by name; those that its layers do not have alike are left out."""
    facts = grid_facts(model, devices=1, global_batch=1, seq_len=1)
    sizes = {
        "width": model.hidden,
        "layers": num_layers(model),
        "heads": facts.heads,
        "heads of keys": facts.kv_heads,
        "experts": facts.experts,
    }
    # A mixture has feed-forwards of several widths.
    return sizes if facts.experts else {**sizes, "width of the feed-forward": facts.ffn}


def compared_sizes(
    arguments: Arguments, names: Mapping[str, str], model: Model, *, section: str = ""
) -> Iterator[Setting]:
    """The sizes that a launch says, each beside MODEL's.

    Args:
        names: setting, without its section -> the size that it is.
        section: before each of them.
    """
    sizes = sizes_of(model)
    for name, value in arguments.items():
        if not name.startswith(section):
            continue
        short = name.removeprefix(section)
        size = names.get(short, "")
        if size in sizes and _is_number(value):
            yield _told(
                name,
                value,
                alike=int(value.replace("_", "")) == sizes[size],
                has=str(sizes[size]) if sizes[size] else "none",
            )
        elif short.partition(".")[0] in _FAMILIES and value not in ("false", "none"):
            yield _told(name, value, alike=_has_scans(model), has="no state-space layers")


def compared_name(
    arguments: Arguments, names: tuple[str, ...], known: Mapping[str, object], model: Model
) -> Iterator[Setting]:
    """The published model that a launch names by some settings, beside MODEL.

    Args:
        known: name of our catalog -> what the framework calls it: the values of the settings
            `names`, or the one of the only setting.
    """
    if not all(name in arguments for name in names):
        return
    said = tuple(arguments[name] for name in names)
    value: object = said if len(names) > 1 else said[0]
    ours = [name for name, theirs in known.items() if theirs == value]
    has = published(model, dict(known))
    if ours or has is not None:
        alike = published(model, dict.fromkeys(ours, value)) is not None
        means = (
            " ".join(map(str, has))
            if isinstance(has, tuple)
            else str(has or "none of the framework's models")
        )
        yield from (_told(name, arguments[name], alike=alike, has=means) for name in names)
        return
    for name in names:
        means = f"no published model is known by {arguments[name][:40]}, so MODEL was not compared"
        yield Setting(name=name, value=arguments[name], verdict=Verdict.OF_THE_MODEL, means=means)


def _is_number(value: str) -> bool:
    text = value.replace("_", "")
    return text.isascii() and text.isdigit() and len(text) <= 15


def _told(name: str, value: str, *, alike: bool, has: str) -> Setting:
    verdict = Verdict.OF_THE_MODEL if alike else Verdict.DIFFERENT
    return Setting(name=name, value=value, verdict=verdict, means="" if alike else f"MODEL: {has}")


def _has_scans(model: Model) -> bool:
    return any(o.scan is not None for block in model.blocks for o in block.operators)
