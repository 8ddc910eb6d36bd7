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

import typer

from shardwright.errors import UsageError
from shardwright.hardware.catalog.prices import price_name
from shardwright.search.request import Choices, Request
from shardwright.strategy.text.grid_notation import name_and_value
from shardwright.units import GIB, parse_count

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Catalog name or path of a Hugging Face config.json.")]
Cluster = Annotated[str, typer.Argument(metavar="CLUSTER", help="Expression such as h100-sxm:16384, or path of a YAML file.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A file that `shardwright plan -o` or `shardwright simulate -o` wrote.")]
SeqLen = Annotated[int, typer.Option("--seq-len", min=1, help="Tokens of a sequence.")]
GlobalBatch = Annotated[int, typer.Option("--global-batch", min=1, help="Sequences a step, over the whole cluster.")]
RuntimeName = Annotated[
    str,
    typer.Option("--runtime", help="Framework and version; `shardwright catalog runtimes` lists them.", show_default="the devices' own"),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", help="Number format of the GEMMs: bf16, fp16, fp8, ...", show_default="bf16, or fp16 where the devices lack it"
    ),
]
EncoderLen = Annotated[int, typer.Option("--encoder-len", min=0, help="Tokens of the encoder's text, for encoder-decoder models.")]
ImageTokens = Annotated[int, typer.Option("--image-tokens", min=0, help="Image patches a sample, for models that see.")]
MemoryReserve = Annotated[
    str, typer.Option("--memory-reserve", metavar="GIB|PERCENT", help="Memory of every device to leave free: 4 (GiB) or 5%.")
]
Headroom = Annotated[
    str,
    typer.Option(
        "--headroom", metavar="PERCENT", help="Share of each device's memory that a plan leaves free; predictions are a few % off."
    ),
]
MaxDevices = Annotated[int, typer.Option("--max-devices", min=0, help="Use at most so many devices; 0 = all.")]
UseAll = Annotated[bool, typer.Option("--use-all", help="Leave no device idle, even where that is slower.")]
Pins = Annotated[list[str] | None, typer.Option("--pin", metavar="AXIS=VALUE[,VALUE]", help="Hold an axis to a value. Repeatable.")]
Excludes = Annotated[list[str] | None, typer.Option("--exclude", metavar="AXIS=VALUE[,VALUE]", help="Leave values out. Repeatable.")]
Top = Annotated[int, typer.Option("--top", min=0, max=1000, help="Next best plans to certify and show.")]
Strategy = Annotated[
    str, typer.Option("--strategy", help='Such as "tp8 pp16 vpp8 dp128 zero1"; or a file in the general notation or from -o; - = read it.')
]
ProfileFile = Annotated[str, typer.Option("--profile", metavar="FILE", help="Measured rates that `shardwright calibrate -o` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a screen.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, and only the result's first line.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to this file too.")]


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
            raise UsageError(f"{flag} {word[:60]!r} is not axis=value", hint=f"for example {flag} tp=8, or {flag} tp8")
        if axis in choices:
            raise UsageError(f"{flag} names {axis[:40]} twice", hint=f"give all its values at once: {flag} {axis[:40]}=4,8")
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


def read_tokens(text: str) -> float:
    """``"15T"`` as 15e12; nothing as 0.

    Raises:
        UsageError: it is no count.
    """
    try:
        return parse_count(text) if text else 0.0
    except ValueError:
        raise UsageError(f"--tokens {text[:40]!r} is no number of tokens", hint="such as 15T or 300B") from None


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
            raise UsageError(f"--price {word[:60]!r} is no price", hint="dollars a device-hour: 2.5, or h100-sxm=2.5")
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
            f"--headroom {text[:40]!r} is not a percentage", hint="5% leaves a twentieth of each device's memory free; 0 nothing"
        )
    return float(number) / 100


def read_request(given: Mapping[str, Any]) -> Request:
    """The request that the flags of a verb say, each by its name; flags of other things are left out. Raises as what reads their text."""
    named = {field.name: given[field.name] for field in fields(Request) if field.name in given}
    reserve_bytes, reserve_fraction = read_reserve(given.get("memory_reserve", "0"))
    if "headroom" in given:
        named["headroom"] = read_headroom(given["headroom"])
    pins, excludes = (read_choices(given.get(name), flag=f"--{name}") for name in ("pin", "exclude"))
    return Request(**named, pins=pins, excludes=excludes, reserve_bytes=reserve_bytes, reserve_fraction=reserve_fraction)
