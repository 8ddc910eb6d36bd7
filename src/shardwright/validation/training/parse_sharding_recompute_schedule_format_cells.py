"""Parse the spellings in tables of sharding, recompute, offloading, schedules and number formats.

An unknown spelling raises an error; it is never guessed.
"""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import StrategyError
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.parallelism_grid import Recompute

EMPTY_CELLS: Final = ("", "-", "--", "?", "n/a", "na", "unknown")
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
    re.findall(
        r"\w+",
        "activation activations checkpoint checkpoints checkpointing checkpointed gradient ac"
        " recompute recomputed recomputing recomputation remat rematerialization rematerialisation"
        " granularity method policy layer layers blocks per every each of in with use and the",
    )
)
"""Words in the column recompute that do not change the amount."""
_NONE: Final = frozenset({"none", "no", "off", "false", "n", "disabled", "without"})
_FULL: Final = frozenset(
    {"full", "yes", "on", "true", "y", "enabled", "uniform", "block", "all", "whole"}
)
_CORE: Final = frozenset({"selective", "op", "core", "attn", "core_attn", "attention"})

_UNOFFLOADED: Final = ("", "none", "no", "off", "0", "false")
_STATES: Final = frozenset({"opt", "optim", "optimizer", "states", "adam"})
_EVERYTHING: Final = frozenset({"full", "all"})
_PARAMETERS: Final = frozenset({"param", "params", "parameter", "parameters", "weights"})
_OFFLOAD_FILLING: Final = frozenset({"cpu", "host", "offload", "and", "zero"})

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
    """Parse (ZeRO stage, ranks of a sharding group; 0 = all); empty: (0, 0); hybrid: `node` ranks.

    Args:
        node: devices of a node, over which hybrid sharding without a number shards.

    Raises:
        StrategyError: unknown spelling.
    """
    text = words.strip().lower()
    if text in EMPTY_CELLS or text in _UNSHARDED:
        return 0, 0
    match = _GROUP.search(text)
    group = next((int(size) for size in match.groups() if size), 0) if match else 0
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
    """Parse a cell as (recompute mode, layers of each chunk; 0 = all); None if empty.

    Raises:
        StrategyError: unknown spelling.
    """
    text = words.strip().lower()
    if text in EMPTY_CELLS:
        return None
    tokens = re.findall(r"[a-z]+(?:_[a-z]+)*|[0-9]+", text)
    numbers = [int(token) for token in tokens if token.isdigit() and len(token) < 6]
    names = {
        part
        for token in tokens
        if not token.isdigit()
        for part in ([token] if token in _CORE else token.split("_"))
    } - _FILLING
    if (names & _NONE and not names - _NONE) or tokens == ["0"]:
        return Recompute.NONE, 0
    if names & _CORE:
        if not names - _CORE and not numbers:
            return Recompute.SELECTIVE, 0
    elif not names - _FULL and tokens and len(numbers) < 2 and (numbers or names != {"block"}):
        has_count = numbers and "uniform" not in names and tokens != ["1"]
        return Recompute.FULL, numbers[0] if has_count else 0
    raise StrategyError(f"recompute {words[:60]}", hint="none, selective, full or full:8")


def offload(words: str) -> tuple[int, tuple[str, ...]]:
    """Parse a cell as (0 or 100 percent of optimizer states on the host, runtime options).

    Spellings are ``opt``, ``opt+param``, ``full-cpu`` or ``cpu``, which alone means the optimizer
    states.

    Raises:
        StrategyError: unknown spelling.
    """
    if words.strip().lower() in _UNOFFLOADED:
        return 0, ()
    parts = set(re.findall(r"[a-z]+", words.lower()))
    if not parts or parts - _STATES - _EVERYTHING - _PARAMETERS - _OFFLOAD_FILLING:
        raise StrategyError(f"offload {words[:60]}", hint="opt, opt+param, full or none")
    states = parts & (_STATES | _EVERYTHING) or not parts & _PARAMETERS
    parameters = parts & (_EVERYTHING | _PARAMETERS)
    return 100 if states else 0, ("param_offload=on",) if parameters else ()


def scaling(words: str) -> str:
    """Parse a cell as the fp8 scaling (recipe) that it names; empty for none."""
    text = words.strip().lower()
    return next((value for value, pattern in _SCALINGS if pattern.search(text)), "")


def number_format(words: str) -> str:
    """Parse a cell as the number format with the fewest bits that it names; empty for none."""
    text = words.strip().lower()
    return next((name for name, pattern in _FORMATS if pattern.search(text)), "")


def schedule(words: str) -> str:
    """Parse a cell as a schedule name, ignoring parentheses and text after it; empty for none."""
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
