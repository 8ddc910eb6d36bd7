"""Arguments of a launch script, and the options of a runtime that they set, by the flags that its
offers name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.options import offered_values
from shardwright.runtime.runtime import Options, Runtime

MAX_TEXT: Final = 20_000
ON: Final = "true"
OFF: Final = ("false", "none", "null")
"""Values of an argument that is not set."""
Arguments = Mapping[str, str]
"""Name of an argument, with dashes and without those before it -> its value; ``true`` of a switch.
"""


def parse_arguments(text: str, *, keep_off: bool = False) -> Arguments:
    """Arguments in any of the ways in which they are written: ``--tp 2 --bf16``, ``--tp=2``,
    ``--tp: 2``, ``tp: 2, bf16: true`` or ``tp=2 bf16=true``. One that is off, or given as nothing,
    is left out; of one that stands twice, the last.

    Args:
        keep_off: arguments that are off stay, with their value.

    Raises:
        RuntimeModelError: too long, or a quotation that does not end.
    """
    if len(text) > MAX_TEXT:
        raise RuntimeModelError(f"arguments of {len(text)} characters", hint=f"at most {MAX_TEXT}")
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise RuntimeModelError(
            f"arguments cannot be read: {error}", hint="--name value, as a launch script has them"
        ) from None
    return arguments_of(words, keep_off=keep_off)


_OVERRIDE: Final = re.compile(r"[+~]{0,2}[A-Za-z_][A-Za-z0-9_./@-]{0,200}=.*", re.DOTALL)
"""``key=value`` behind an argument that has its value: Hydra's and OmegaConf's overrides."""


def arguments_of(words: Iterable[str], *, keep_off: bool = False) -> Arguments:
    """As `parse_arguments`, of words that a shell has taken apart."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        word = word.removesuffix(",")
        stem, equals, value = word.partition("=")
        if (
            word.startswith("--")
            or word[1:].endswith(":")
            or (equals and (not name or (found[name] != ON and _OVERRIDE.fullmatch(word))))
        ):
            name = stem.removeprefix("--").lstrip("+").removesuffix(":").replace("_", "-").lower()
            found[name] = value if equals else ON
            name = "" if equals else name
        elif name:
            found[name] = word if found[name] == ON else f"{found[name]} {word}"
    return {
        key: value for key, value in found.items() if key and (keep_off or value.lower() not in OFF)
    }


def _plain(value: str) -> str:
    """A value as files of all forms have it: Python's True is true, and a list has spaces."""
    return value.lower().replace(",", " ")


def options_of(runtime: Runtime, arguments: Arguments) -> Options:
    """What `arguments` set of each option of `runtime`: the value with the most flags that are all
    among them, else the one without a flag. An option that has neither stays as the runtime has it.
    """
    found = []
    for name, values in offered_values(runtime).items():
        flags = {
            offer.value: parse_arguments(offer.flag)
            for offer in runtime.offers
            if offer.option == name
        }
        held = [
            value
            for value in values
            if all(
                _plain(arguments.get(flag, "")) == _plain(word)
                for flag, word in flags[value].items()
            )
        ]
        if held:
            found.append((name, max(held, key=lambda value: len(flags[value]))))
    return tuple(found)
