"""What a launch is made of: its settings as people wrote them, what each means here, and the
strategy and job that they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from shardwright.errors import DataError, nearest
from shardwright.frameworks.launch.framework_claims import Claim, Document, Signature
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.graph import Model
from shardwright.runtime.arguments import Arguments
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.violation import Violation

ORDER: Final = "pipeline-order-table"
"""Name of the setting that the rows of a table of the pipeline's order are, where a file of a
launch is one."""


NODE_DEVICES: Final = 8
"""Devices of a node, where nobody says the cluster."""


class Verdict(StrEnum):
    """What was made of a setting: it is part of the strategy, the job or an option; it is the
    model's, as MODEL has it or not; it changes neither time nor memory here; it does nothing beside
    the launch's other settings; or it is not known.
    """

    UNDERSTOOD = "understood"
    OF_THE_MODEL = "the model's"
    DIFFERENT = "another model"
    IGNORED = "changes nothing"
    IDLE = "no effect in this launch"
    UNKNOWN = "not understood"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a launch.

    Args:
        name, value: as the framework has them, without dashes before.
        verdict: what was made of it.
        means: what it says here, why it changes nothing, or the names that are near.
    """

    name: str
    value: str
    verdict: Verdict
    means: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launch says.

    Args:
        framework: word of its reader.
        runtime: catalog name of the framework as the planner knows it, without options.
        grid: the strategy, with every option of the runtime that the launch sets or leaves at its
            own default.
        seq_len: tokens of a sample;
        global_batch: samples a step; 0 = not said.
        precision: of the job; empty = not said.
        dropout: attention or hidden dropout is on.
        settings: all of them.
        notes: what was assumed or left out, a line each.
        refused: rules of the framework itself that the launch breaks, for which it would not start.
        train: what is trained (`model.trained.parse_training`); empty = all of the model.
        possible: axis -> the values that the framework has of it, of those that its runtime has
        more of: better strategies are looked for among them alone.
    """

    framework: str
    runtime: str
    grid: Grid
    seq_len: int
    global_batch: int
    precision: str
    dropout: bool
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[Violation, ...] = ()
    train: str = ""
    possible: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def of(self, *verdicts: Verdict) -> tuple[Setting, ...]:
        """The settings with one of these verdicts."""
        return tuple(one for one in self.settings if one.verdict in verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The settings of the files of one launch, in the words of the framework.

    Args:
        arguments: name, in lower case with dashes -> value.
        notes: of how they were found.
        program: that a script starts (`claims.Document.program`); empty = files alone.
        node_devices: devices of a node of the cluster.
    """

    arguments: Arguments
    notes: tuple[str, ...] = ()
    program: str = ""
    node_devices: int = NODE_DEVICES


class LaunchReader(Protocol):
    """A framework whose launch files are read."""

    @property
    def name(self) -> str:
        """Word of the command line."""

    @property
    def runtime(self) -> str:
        """Catalog name of the framework as the planner knows it, where nobody names another."""

    @property
    def signature(self) -> Signature:
        """What the framework's files have."""

    @property
    def includes(self) -> frozenset[str]:
        """Frameworks whose files are part of its launches."""

    @property
    def target(self) -> str:
        """The export whose files say a strategy in its words, or in words that `worded` makes its
        own.
        """

    def claims(self, document: Document) -> Claim:
        """The evidence that a file is of this framework (`claims.claim_of` a `Signature`)."""

    def worded(self, name: str) -> str:
        """A setting of that export as this framework calls it."""

    def read(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """What settings say of a launch of `model` on so many devices, under a runtime of the
        catalog.
        """


@runtime_checkable
class SaysSettings(Protocol):
    """A reader that can say a strategy in its framework's own settings, without an export of it."""

    def settings_of(self, grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
        """The settings by which the framework runs a strategy under a runtime; empty = it cannot
        say it.
        """


def by_name(reasons: Mapping[str, str]) -> Mapping[str, str]:
    """Reason -> names, apart by spaces; as name -> reason."""
    return MappingProxyType(
        {name: reason for reason, names in reasons.items() for name in names.split()}
    )


def judged(
    arguments: Arguments,
    *,
    understood: Mapping[str, str],
    model: Iterable[Setting] = (),
    ignored: Mapping[str, str],
    unmodelled: Mapping[str, str] | None = None,
) -> Iterator[Setting]:
    """What was made of every setting, in the order of the files.

    Args:
        understood: name -> what it says here.
        model: of those that are the model's.
        ignored: name, or the beginning of names that ends in ``*``, -> why it changes nothing.
        unmodelled: name -> what it changes that is not counted here.
    """
    of_model = {one.name: one for one in model}
    for name, value in arguments.items():
        if name in understood:
            yield Setting(
                name=name, value=value, verdict=Verdict.UNDERSTOOD, means=understood[name]
            )
        elif name in of_model:
            yield of_model[name]
        elif (why := _ignored(name, ignored)) is not None:
            yield Setting(name=name, value=value, verdict=Verdict.IGNORED, means=why)
        elif unmodelled and name in unmodelled:
            yield Setting(
                name=name,
                value=value,
                verdict=Verdict.UNKNOWN,
                means=f"not counted: {unmodelled[name]}",
            )
        else:
            names = (*understood, *of_model, *(one for one in ignored if not one.endswith("*")))
            yield Setting(name=name, value=value, verdict=Verdict.UNKNOWN, means=_near(name, names))
    yield from (one for name, one in of_model.items() if name not in arguments)


def _near(name: str, names: Iterable[str]) -> str:
    hint = nearest(name, names)
    return hint if hint.startswith("did") else ""


def _ignored(name: str, ignored: Mapping[str, str]) -> str | None:
    if name in ignored:
        return ignored[name]
    return next(
        (why for one, why in ignored.items() if one.endswith("*") and name.startswith(one[:-1])),
        None,
    )


def require_value(name: str, value: str) -> str:
    """A value that does not wait for a variable.

    Raises:
        DataError: a variable of the script has no value.
    """
    if "$" in value or "`" in value:
        variable = re.search(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9]{1,3})", value)
        number = variable is not None and variable[1].isdigit()
        what = "an argument that the script is called with" if number else "a variable of a script"
        raise DataError(
            f"--{name} {value[:60]}: the script does not say what that is",
            hint=f"--set {variable[1] if variable else 'NAME'}=VALUE gives {what} a value",
        )
    return value


def count(arguments: Arguments, name: str, otherwise: int = 0) -> int:
    """The whole number of a setting.

    Raises:
        DataError: it is none, or waits for a variable.
    """
    if name not in arguments:
        return otherwise
    text = require_value(name, arguments[name]).replace("_", "").replace(",", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise DataError(
            f"{name} {arguments[name][:40]!r} is not a whole number", hint="a positive whole number"
        )
    return int(text)


def share(arguments: Arguments, name: str, otherwise: float = 0.0) -> float:
    """The share, 0 to 1, of a setting.

    Raises:
        DataError: it is none, or waits for a variable.
    """
    if name not in arguments:
        return otherwise
    text = require_value(name, arguments[name])
    if not re.fullmatch(r"0?\.[0-9]{1,9}|[01](\.0{0,9})?", text):
        raise DataError(f"{name} {text[:40]!r} is not a share", hint="0 to 1")
    return float(text)
