"""The launch type: settings as the user wrote them, the meaning of each, and the resulting
strategy and job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from shardwright.frameworks.launch.framework_claims import Claim, Document, Signature, claim_of
from shardwright.frameworks.settings.setting_table import SettingTable
from shardwright.frameworks.settings.verdicts import Setting, Verdict
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import Arguments
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.rule_violations import Violation

ORDER: Final = "pipeline-order-table"
"""Name of the setting that the rows of a table of the pipeline's order are, where a file of a
launch is one."""


NODE_DEVICES: Final = 8
"""Devices of a node, where nobody says the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch that was read: framework, strategy, job and settings.

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


class ReadsLaunch(Protocol):
    """A function that reads settings as a launch."""

    def __call__(self, written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
        """The launch of `model` on so many devices, under a runtime of the catalog."""


class NamesSettings(Protocol):
    """A function that names a strategy's settings."""

    def __call__(self, grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
        """The settings by which a framework runs a strategy under a runtime; none if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReader:
    """A framework whose launch files are read.

    Args:
        name: word of the command line.
        runtime: catalog name of the framework as the planner knows it, where nobody names another.
        signature: what identifies the framework's files.
        read: its settings as a launch.
        settings: its table of settings, where it has one of its own.
        evidence: that a file is of this framework.
        includes: frameworks whose files are part of its launches.
        target: the export whose files have a strategy in its settings, or in names that
            `own_name` turns into them; empty = none.
        own_name: the framework's name for a setting of that export.
        settings_of: a strategy in the framework's own settings, where no export has it.
    """

    name: str
    runtime: str
    signature: Signature
    read: ReadsLaunch
    settings: SettingTable | None = None
    evidence: Callable[[Signature, Document], Claim] = claim_of
    includes: frozenset[str] = frozenset()
    target: str = ""
    own_name: Callable[[str], str] = str
    settings_of: NamesSettings | None = None

    def claims(self, document: Document) -> Claim:
        """The evidence that a file is of this framework."""
        return self.evidence(self.signature, document)


def assumed(
    defaults: Mapping[str, str], source: str, *, files: str = "these files do"
) -> tuple[str, ...]:
    """A note on settings that a framework has by default, where there are any.

    Args:
        source: where the defaults are documented.
        files: what does not set them, with its verb.
    """
    if not defaults:
        return ()
    named = ", ".join(f"{name} {value}" for name, value in defaults.items())
    return (f"assumed, as {files} not set them: {named} ({source})",)
