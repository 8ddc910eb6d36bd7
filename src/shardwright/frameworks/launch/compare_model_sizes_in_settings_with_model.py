"""Check of a launch's model settings against MODEL: sizes, and names of published models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.export.match_target_model_by_blocks import published_name
from shardwright.frameworks.settings.setting_verdicts import LaunchSetting, Verdict
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts, num_layers

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
"""Field of a configuration of Transformers -> name of the model's size."""
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
"""Setting of MaxText -> name of the model's size."""
_FAMILIES: Final = ("is-mamba-config", "ssm-cfg", "mamba", "mamba2")
"""Settings of a model of state-space layers."""


def sizes_of(model: Model) -> dict[str, int]:
    """MODEL's sizes by name: width, layers, heads, KV heads, experts; if dense, FFN width."""
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
) -> Iterator[LaunchSetting]:
    """Yield verdicts on settings of sizes or Mamba: OF_THE_MODEL if MODEL has them, or DIFFERENT.

    Args:
        names: setting without its section -> name of the size.
        section: prefix of each setting.
    """
    sizes = sizes_of(model)
    for name, value in arguments.items():
        if not name.startswith(section):
            continue
        short = name.removeprefix(section)
        size = names.get(short, "")
        if size in sizes and _is_number(value):
            yield _compared_setting(
                name,
                value,
                alike=int(value.replace("_", "")) == sizes[size],
                has=str(sizes[size]) if sizes[size] else "none",
            )
        elif short.partition(".")[0] in _FAMILIES and value not in ("false", "none"):
            yield _compared_setting(
                name, value, alike=_has_scans(model), has="no state-space layers"
            )


def compared_name(
    arguments: Arguments, names: tuple[str, ...], known: Mapping[str, object], model: Model
) -> Iterator[LaunchSetting]:
    """Yield verdicts on `names`: DIFFERENT if MODEL is not the published model that they name.

    Args:
        known: catalog name -> the framework's name: the values of the settings `names`, or the
            value of the only setting.
    """
    if not all(name in arguments for name in names):
        return
    values = tuple(arguments[name] for name in names)
    value: object = values if len(names) > 1 else values[0]
    ours = [name for name, theirs in known.items() if theirs == value]
    model_name = published_name(model, dict(known))
    if ours or model_name is not None:
        alike = published_name(model, dict.fromkeys(ours, value)) is not None
        means = (
            " ".join(map(str, model_name))
            if isinstance(model_name, tuple)
            else str(model_name or "none of the framework's models")
        )
        yield from (
            _compared_setting(name, arguments[name], alike=alike, has=means) for name in names
        )
        return
    for name in names:
        means = f"no published model is known by {arguments[name][:40]}, so MODEL was not compared"
        yield LaunchSetting(
            name=name, value=arguments[name], verdict=Verdict.OF_THE_MODEL, means=means
        )


def _is_number(value: str) -> bool:
    """True if a text is 1 to 15 digits, apart from underscores."""
    text = value.replace("_", "")
    return text.isascii() and text.isdigit() and len(text) <= 15


def _compared_setting(name: str, value: str, *, alike: bool, has: str) -> LaunchSetting:
    """Setting with verdict OF_THE_MODEL if `alike`, else DIFFERENT with what MODEL `has`."""
    verdict = Verdict.OF_THE_MODEL if alike else Verdict.DIFFERENT
    return LaunchSetting(
        name=name, value=value, verdict=verdict, means="" if alike else f"MODEL: {has}"
    )


def _has_scans(model: Model) -> bool:
    """True if the model has state-space layers."""
    return any(o.scan is not None for block in model.blocks for o in block.operators)
