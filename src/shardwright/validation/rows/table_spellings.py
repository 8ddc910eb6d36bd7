"""What people write in tables for sharding, recompute, schedules and number formats; other words
are refused, not guessed.
"""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import StrategyError
from shardwright.strategy.grid.axes import Recompute
from shardwright.strategy.grid.schedules import GRID_SCHEDULES

NOTHING_SAID: Final = ("", "-", "--", "?", "n/a", "na", "unknown")
_UNSHARDED: Final = ("none", "no", "off", "0", "ddp", "no_shard", "false", "replicated")
_STAGE: Final = re.compile(
    r"(?:zero|stage)[-_ ]*(?:stage)?[-_ ]*([0-3])(?![0-9])|\bz([0-3])\b|^([1-3])$"
)
_GROUP: Final = re.compile(
    r"(?:shard|sharding)[ -_]?group(?: of)?[ =:]*([0-9]{1,6})|within ([0-9]{1,6})"
    r"|fsdp2?(?:[=:] ?| (?=[3-9]|[1-9][0-9]))([0-9]{1,6})|\bshard(?:ed)?(?: over)? ([0-9]{1,6})"
    r"|hsdp[ =:]+\(?([0-9]{1,6})|fsdp2 \(full\) ([0-9]{1,6})"
)
_SHARDED: Final = (
    (1, re.compile(r"distributed[-_ ]optimizer|\bdist[-_ ]?opt|optimizer[-_ ]shard|^os$|^optim$")),
    (2, re.compile(r"shard_grad_op|hybrid_shard_zero2|^optim_grads$|^os\+g$")),
    (
        3,
        re.compile(
            r"fsdp|full_shard|hybrid_shard|hsdp|fully[-_ ]sharded|^optim_grads_params$|^os\+g\+p$"
        ),
    ),
)
_HYBRID: Final = re.compile(r"hybrid_shard|\bhsdp")

_FILLING: Final = frozenset(
    [
        *(
            "activation",
            "activations",
            "checkpoint",
            "checkpoints",
            "checkpointing",
            "checkpointed",
            "gradient",
            "ac",
        ),
        *(
            "recompute",
            "recomputed",
            "recomputing",
            "recomputation",
            "remat",
            "rematerialization",
            "rematerialisation",
        ),
        *(
            "granularity",
            "method",
            "policy",
            "layer",
            "layers",
            "blocks",
            "per",
            "every",
            "each",
            "of",
            "in",
            "with",
            "use",
            "and",
            "the",
        ),
    ]
)
"""Words of a recompute that say nothing of how much."""
_NONE: Final = frozenset({"none", "no", "off", "false", "n", "disabled", "without"})
_FULL: Final = frozenset(
    {"full", "yes", "on", "true", "y", "enabled", "uniform", "block", "all", "whole"}
)
_CORE: Final = frozenset({"selective", "op", "core", "attn", "core_attn", "attention"})

_FORMATS: Final = (
    ("fp4", re.compile(r"fp4|float4|e2m1")),
    ("fp8", re.compile(r"fp8|float8|e4m3|e5m2")),
    ("bf16", re.compile(r"bf16|bfloat16")),
    ("fp16", re.compile(r"fp16|float16|\bhalf\b")),
    ("tf32", re.compile(r"tf32")),
    ("fp32", re.compile(r"^(fp32|float32|single)$")),
)
_SCALINGS: Final = (
    ("mx", re.compile(r"mxfp8|fp8[-_ ]?mx\b|microscaling")),
    ("blockwise", re.compile(r"block[-_ ]?wise|sub[-_ ]?channel|128 ?x ?128")),
    ("rowwise", re.compile(r"row[-_ ]?wise")),
    ("delayed", re.compile(r"delayed|fp8[-_ ]?ds\b")),
    ("current", re.compile(r"current|tensor[-_ ]?wise|fp8[-_ ]?cs\b")),
)
_SCHEDULES: Final = {
    "afab": "gpipe",
    "all-forward-all-backward": "gpipe",
    "zero-bubble": "zb-h1",
    "zero-bubble-h1": "zb-h1",
    "zero-bubble-h2": "zb-h2",
    "zero-bubble-v": "zb-v",
    "zbh1": "zb-h1",
    "zbh2": "zb-h2",
    "zbv": "zb-v",
    "dualpipev": "dualpipe-v",
    "one-forward-one-backward": "1f1b",
    "pipedream-flush": "1f1b",
    **dict.fromkeys(
        ("interleaved", "1f1b-interleaved", "interleaved-1f1b", "vpp"), "interleaved-1f1b"
    ),
}


def sharding(words: str, *, node: int) -> tuple[int, int]:
    """(ZeRO stage, size of the sharding group; 0 = all) of a table's words; nothing said is no
    sharding.

    Args:
        node: devices of a node, over which hybrid sharding without a number shards.

    Raises:
        StrategyError: other words.
    """
    text = words.strip().lower()
    if text in NOTHING_SAID or text in _UNSHARDED:
        return 0, 0
    found = _GROUP.search(text)
    group = next((int(size) for size in found.groups() if size), 0) if found else 0
    stage = _STAGE.search(text)
    if stage:
        level = int(next(digit for digit in stage.groups() if digit))
    else:
        level = next((level for level, pattern in _SHARDED if pattern.search(text)), 0)
        if not level:
            raise StrategyError(
                f"sharding {words[:60]}", hint="ZeRO-1, FSDP, distributed optimizer, none ..."
            )
        if level == 1:
            return 1, 0
    return level, group or (node if _HYBRID.search(text) else 0)


def recompute(words: str) -> tuple[Recompute, int] | None:
    """(mode, layers of each chunk; 0 = all) of a table's words; None where nothing is said.

    Raises:
        StrategyError: other words.
    """
    text = words.strip().lower()
    if text in NOTHING_SAID:
        return None
    found = re.findall(r"[a-z]+(?:_[a-z]+)*|[0-9]+", text)
    numbers = [int(word) for word in found if word.isdigit() and len(word) < 6]
    said = {
        part
        for word in found
        if not word.isdigit()
        for part in ([word] if word in _CORE else word.split("_"))
    } - _FILLING
    if (said & _NONE and not said - _NONE) or found == ["0"]:
        return Recompute.NONE, 0
    if "selective" in said or said & _CORE:
        if not said - _CORE and not numbers:
            return Recompute.SELECTIVE, 0
    elif not said - _FULL and found and len(numbers) < 2 and (numbers or said != {"block"}):
        some = numbers and "uniform" not in said and found != ["1"]
        return Recompute.FULL, numbers[0] if some else 0
    raise StrategyError(f"recompute {words[:60]}", hint="none, selective, full or full:8")


def scaling(words: str) -> str:
    """The value of the option `fp8` that a table's words name; empty where they name none."""
    text = words.strip().lower()
    return next((value for value, pattern in _SCALINGS if pattern.search(text)), "")


def number_format(words: str) -> str:
    """The recipe of a table's words, the fewest bits where they name several; empty where they name
    none.
    """
    text = words.strip().lower()
    return next((name for name, pattern in _FORMATS if pattern.search(text)), "")


def schedule(words: str) -> str:
    """The schedule of a table's words, without what stands in parentheses or behind the name; empty
    where they name none.
    """
    text = re.sub(r"[\s_]+", "-", re.sub(r"\(.*?\)", " ", words.lower()).strip()).strip("-")
    names = {**{name: name for name in GRID_SCHEDULES}, **_SCHEDULES}
    return names.get(text) or next(
        (
            names[name]
            for name in sorted(names, key=len, reverse=True)
            if text.startswith(f"{name}-")
        ),
        "",
    )
