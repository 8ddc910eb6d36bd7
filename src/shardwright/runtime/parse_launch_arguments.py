"""Parser of launch-script arguments, and the runtime options that these arguments set."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.framework_description import Options, Runtime
from shardwright.runtime.list_and_set_runtime_options import offered_values

MAX_TEXT: Final = 20_000
ON: Final = "true"
OFF: Final = ("false", "none", "null")
"""Values of an argument that is not set."""
Arguments = Mapping[str, str]
"""Name of an argument, with dashes and without those before it -> its value; ``true`` of a switch.
"""


def parse_arguments(text: str, *, keep_off: bool = False) -> Arguments:
    """Parse the text of launch-script arguments into {name: value}, without those that are off.

    The text is written as ``--tp 2 --bf16``, ``--tp=2``, ``--tp: 2``, ``tp: 2, bf16: true`` or
    ``tp=2 bf16=true``.

    An argument that is off, or empty, is left out; of a duplicate argument, the last counts.

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
    return arguments_from_words(words, keep_off=keep_off)


_OVERRIDE: Final = re.compile(r"[+~]{0,2}[A-Za-z_][A-Za-z0-9_./@-]{0,200}=.*", re.DOTALL)
"""``key=value`` behind an argument that has its value: Hydra's and OmegaConf's overrides."""


def arguments_from_words(words: Iterable[str], *, keep_off: bool = False) -> Arguments:
    """Parse shell-split words (``--name value``) to {name: value}, without those that are off."""
    values: dict[str, str] = {}
    name = ""
    for word in words:
        word = word.removesuffix(",")
        stem, equals, value = word.partition("=")
        if (
            word.startswith("--")
            or word[1:].endswith(":")
            or (equals and (not name or (values[name] != ON and _OVERRIDE.fullmatch(word))))
        ):
            name = stem.removeprefix("--").lstrip("+").removesuffix(":").replace("_", "-").lower()
            values[name] = value if equals else ON
            name = "" if equals else name
        elif name:
            values[name] = word if values[name] == ON else f"{values[name]} {word}"
    return {
        key: value
        for key, value in values.items()
        if key and (keep_off or value.lower() not in OFF)
    }


def _normalised_value(value: str) -> str:
    """A value in lower case, with commas replaced by spaces.

    Python's ``True`` then equals ``true``, and lists in files of all formats are equal.
    """
    return value.lower().replace(",", " ")


def options_from_arguments(runtime: Runtime, arguments: Arguments) -> Options:
    """(option, value) pairs whose flags all stand in `arguments`; most flags win, no flags count.

    Each option gets the value with the most flags that are all among the arguments, else the value
    without a flag. An option that has neither is left out: it keeps the runtime's value.
    """
    options = []
    for name, values in offered_values(runtime).items():
        flags = {
            offer.value: parse_arguments(offer.flag)
            for offer in runtime.offers
            if offer.option == name
        }
        matching = [
            value
            for value in values
            if all(
                _normalised_value(arguments.get(flag, "")) == _normalised_value(word)
                for flag, word in flags[value].items()
            )
        ]
        if matching:
            options.append((name, max(matching, key=lambda value: len(flags[value]))))
    return tuple(options)
