"""Arguments and options that several verbs share, and what is read from their text.

Keys carry the unit; it is converted here, once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Annotated, Any

from shardwright.cli import light_typer as typer
from shardwright.cli.counts import read_batch, read_count
from shardwright.errors import UsageError
from shardwright.hardware.catalog.prices import price_name
from shardwright.search.request import Choices, Request
from shardwright.strategy.text.grid_notation import name_and_value
from shardwright.units import GIB, parse_count

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Catalog name, or path of a Hugging Face config.json."),
]
Cluster = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help="Expression such as h100-sxm:16384, or path of a YAML file (docs/clusters.md).",
    ),
]
PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN",
        help="Plan file written by `shardwright plan -o` or `shardwright simulate -o`.",
    ),
]
SeqLen = Annotated[
    str, typer.Option("--seq-len", metavar="N", help="Sequence length in tokens: 8192 or 8k.")
]
GlobalBatch = Annotated[
    str,
    typer.Option(
        "--global-batch",
        metavar="N",
        help=(
            'Global batch size in sequences per step; or "4M tokens". `plan` also takes auto, or'
            " auto:256..4096: it plans for these batches and takes the best one."
        ),
        show_default=False,
    ),
]
GlobalBatchTokens = Annotated[
    str,
    typer.Option(
        "--global-batch-tokens",
        metavar="N",
        help="Global batch size in tokens: 4M (M = 1024 x 1024).",
        show_default=False,
    ),
]
RuntimeName = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="Training framework and version; `shardwright catalog runtimes` lists them.",
        show_default="the usual one of the devices",
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="Precision of the GEMMs: bf16, fp16, fp8, ...",
        show_default="bf16, or fp16 on devices without bf16",
    ),
]
EncoderLen = Annotated[
    int,
    typer.Option(
        "--encoder-len",
        metavar="N",
        min=0,
        help="Encoder sequence length in tokens, for encoder-decoder models.",
    ),
]
ImageTokens = Annotated[
    int,
    typer.Option(
        "--image-tokens",
        metavar="N",
        min=0,
        help="Image tokens per sample, for vision-language models.",
    ),
]
ExpertImbalance = Annotated[
    float,
    typer.Option(
        "--expert-imbalance",
        metavar="X",
        help="Tokens of the device with the busiest experts over the mean.",
    ),
]
Dropout = Annotated[
    bool,
    typer.Option(
        "--dropout", help="Train with attention and hidden dropout; their masks are kept."
    ),
]
GradientWire = Annotated[
    str,
    typer.Option(
        "--gradient-wire",
        metavar="DTYPE",
        help="Dtype of gradients on the network; as the runtime adds them up.",
    ),
]
MemoryReserve = Annotated[
    str,
    typer.Option(
        "--memory-reserve",
        metavar="GIB|PERCENT",
        help="Memory to keep free on every device, in GiB (4) or percent (5%).",
    ),
]
Headroom = Annotated[
    str,
    typer.Option(
        "--headroom",
        metavar="PERCENT",
        help="Share of each device's memory that plans leave free: predictions are a few % off.",
    ),
]
SearchMemory = Annotated[
    str,
    typer.Option(
        "--search-memory",
        metavar="GIB",
        help="Memory that the search may take; a larger space is searched in parts.",
    ),
]
UseAll = Annotated[
    bool, typer.Option("--use-all", help="Leave no device idle, even where that is slower.")
]
MaxDevices = Annotated[
    int,
    typer.Option(
        "--max-devices", metavar="N", min=0, help="Use at most this many devices; 0 means all."
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", metavar="AXIS=V[,V]", help="Fix an axis, e.g. tp=8 or pp=4,8. Repeatable."
    ),
]
Excludes = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="AXIS=V[,V]",
        help="Exclude values of an axis, e.g. zero=3. Repeatable.",
    ),
]
Top = Annotated[
    int,
    typer.Option(
        "--top",
        metavar="N",
        min=0,
        max=1000,
        help="Number of runners-up to certify and show; joint and exact searches have none.",
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        "--strategy",
        help=(
            'Such as "tp8 pp16 vpp8 dp128 zero1"; or a file in plan notation or written by -o; or -'
            " for standard input."
        ),
    ),
]
Train = Annotated[
    str,
    typer.Option(
        "--train",
        metavar="WHAT",
        help="What is trained: all, lora:r16, lora:r16:attn,mlp, frozen:embed, without:mtp.",
        show_default="all",
    ),
]
Teacher = Annotated[
    str,
    typer.Option(
        "--teacher",
        metavar="MODEL",
        help="Frozen model that runs forward beside MODEL, whose logits the loss reads.",
    ),
]
ProfileFile = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Profile of measured rates, written by `shardwright calibrate -o`.",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help=(
            "Where joint and mixed searches run: serial, processes (of this machine, once there are"
            " seconds of work) or ray. One answer."
        ),
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        min=0,
        help="Processes of a joint or mixed search; 0 means one a core.",
        show_default=False,
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        metavar="NAME",
        help=(
            "What the plan is best in: time, cost (dollars a step), energy (joules a step), or"
            " pareto (the front of time and cost)."
        ),
    ),
]
Budget = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="USD",
        help="Dollars an hour that the nodes of a plan may cost at most.",
        show_default=False,
    ),
]
Scenarios = Annotated[
    str,
    typer.Option(
        "--scenarios",
        metavar="FILE",
        help="States in which the cluster is met, with weights (YAML): one plan for all.",
        show_default=False,
    ),
]
Tail = Annotated[
    float,
    typer.Option(
        "--tail",
        metavar="LEVEL",
        min=0.0,
        max=1.0,
        help=(
            "Judge plans for scenarios by the slowest part of the time: 0 is all of it, 0.9 the"
            " slowest tenth, 1 the slowest scenario."
        ),
    ),
]
CriticalBatch = Annotated[
    str,
    typer.Option(
        "--critical-batch",
        metavar="TOKENS",
        help="Critical batch size in tokens a step, for --global-batch auto: 4M.",
        show_default="by a published law of model size and --tokens",
    ),
]
ScaledDevices = Annotated[
    str,
    typer.Option(
        "--devices",
        metavar="A..B",
        help=(
            "Plan on the first A, 2A, 4A .. B devices of CLUSTER instead, and show how step and"
            " efficiency scale: 8..512, or 8,24,64."
        ),
        show_default=False,
    ),
]
Tokens = Annotated[
    str,
    typer.Option(
        "--tokens",
        metavar="N",
        help="Tokens to train on, such as 15T: shows days and cost.",
        show_default=False,
    ),
]
Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="[NAME=]USD",
        help=(
            "Dollars a device-hour for the cost of --tokens, of all devices or of an accelerator or"
            " instance. Repeatable."
        ),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        help="Print one line, such as a step's seconds, a tab and the strategy; no progress.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback if something fails.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the result to this file.")
]


def read_choices(words: Sequence[str] | None, *, flag: str) -> Choices:
    """``["tp=4,8", "zero1"]`` as ``(("tp", ("4", "8")), ("zero", ("1",)))``.

    Raises:
        UsageError: a word is neither axis=value nor a degree such as tp8, or names an axis again.
    """
    choices: dict[str, tuple[str, ...]] = {}
    for word in words or ():
        axis, text = name_and_value(word.strip())
        values = tuple(v.strip() for v in text.split(","))
        if not axis or not all(values):
            raise UsageError(
                f"{flag} {word[:60]!r} is not axis=value",
                hint=f"for example {flag} tp=8, or {flag} tp8",
            )
        if axis in choices:
            raise UsageError(
                f"{flag} names {axis[:40]} twice",
                hint=f"give all its values at once: {flag} {axis[:40]}=4,8",
            )
        choices[axis] = values
    return tuple(choices.items())


def read_reserve(text: str) -> tuple[int, float]:
    """``"4"`` or ``"4GiB"`` as (bytes, 0.0); ``"5%"`` as (0, 0.05).

    Raises:
        UsageError: neither, or negative, or all of the memory.
    """
    hint = "4 for GiB, or 5% of every device's memory"
    word = text.strip().lower()
    percent = word.endswith("%")
    try:
        value = float(word.removesuffix("%").removesuffix("gib").strip())
    except ValueError:
        raise UsageError(f"--memory-reserve {text[:40]!r} is not a size", hint=hint) from None
    if not 0 <= value < (100 if percent else 2**40):
        raise UsageError(f"--memory-reserve {text[:40]!r} is out of range", hint=hint)
    return (0, value / 100) if percent else (round(value * GIB), 0.0)


def read_search_memory(text: str) -> int:
    """``"2"`` or ``"2GiB"`` as bytes.

    Raises:
        UsageError: no size.
    """
    word = text.strip().lower().removesuffix("gib").strip()
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", word):
        raise UsageError(
            f"--search-memory {text[:40]!r} is not a size",
            hint="2 or 2GiB; a larger space is searched in parts",
        )
    return round(float(word) * GIB)


def read_tokens(text: str) -> float:
    """``"15T"`` as 15e12; nothing as 0.

    Raises:
        UsageError: it is no count.
    """
    try:
        return parse_count(text) if text else 0.0
    except ValueError:
        raise UsageError(
            f"--tokens {text[:40]!r} is no number of tokens", hint="such as 15T or 300B"
        ) from None


def read_prices(words: Sequence[str] | None) -> dict[str, float]:
    """``["2.5"]`` as {"": 2.5}, ``["h100-sxm=2.5"]`` as {"h100-sxm": 2.5}: dollars a device-hour.

    Raises:
        UsageError: no price, or for no accelerator or instance that there is.
    """
    prices: dict[str, float] = {}
    for word in words or ():
        name, _, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < inf:
            raise UsageError(
                f"--price {word[:60]!r} is no price",
                hint="dollars a device-hour: 2.5, or h100-sxm=2.5",
            )
        prices[price_name(name.strip()) if name else ""] = value
    return prices


def read_headroom(text: str) -> float:
    """``"5%"`` as 0.05.

    Raises:
        UsageError: it is no percentage below 100.
    """
    number = text.strip().removesuffix("%").strip()
    if not (re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,9})?", number)):
        raise UsageError(
            f"--headroom {text[:40]!r} is not a percentage",
            hint="5% leaves a twentieth of each device's memory free; 0 nothing",
        )
    return float(number) / 100


def read_budget(text: str) -> float:
    """``"40"`` as 40.0; nothing as 0.

    Raises:
        UsageError: no positive number of dollars.
    """
    word = text.strip().lower().removesuffix("usd").strip()
    if not word:
        return 0.0
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", word) or not float(word):
        raise UsageError(
            f"--budget {text[:40]!r} is no number of dollars",
            hint="dollars an hour for all nodes together: 40, or 12.5",
        )
    return float(word)


def read_request(given: Mapping[str, Any]) -> Request:
    """The request that the flags of a verb say, each by its name; flags of other things are left
    out. Raises as what reads their text.
    """
    seq_len = read_count(given["seq_len"], flag="--seq-len")
    batch = read_batch(given["global_batch"], given["global_batch_tokens"], seq_len=seq_len)
    read = {**given, "seq_len": seq_len, "global_batch": batch}
    named = {field.name: read[field.name] for field in fields(Request) if field.name in read}
    reserve_bytes, reserve_fraction = read_reserve(given.get("memory_reserve", "0"))
    if "search_memory" in given:
        named["search_memory"] = read_search_memory(given["search_memory"])
    if "budget" in given:
        named["budget"] = read_budget(given["budget"])
    if "headroom" in given:
        named["headroom"] = read_headroom(given["headroom"])
    pins, excludes = (
        read_choices(given.get(name), flag=f"--{name}") for name in ("pin", "exclude")
    )
    return Request(
        **named,
        pins=pins,
        excludes=excludes,
        reserve_bytes=reserve_bytes,
        reserve_fraction=reserve_fraction,
    )
