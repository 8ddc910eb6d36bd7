"""A launch: its settings as written, the meaning of each, and the resulting strategy and job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from shardwright.frameworks.launch.framework_detection import Claim, Document, Signature, claim_of
from shardwright.frameworks.settings.setting_table import SettingTable
from shardwright.frameworks.settings.setting_verdicts import LaunchSetting, Verdict
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.rule_violations import Violation

ORDER: Final = "pipeline-order-table"
"""Name of the setting that holds the rows of a pipeline order table, where a file of a launch is
such a table."""


NODE_DEVICES: Final = 8
"""Devices of a node where no cluster is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A training launch as read: framework, strategy, job, and the verdict on every setting.

    Args:
        framework: name of the reader.
        runtime: catalog name of the framework as the planner knows it, without options.
        grid: the strategy, with every option of the runtime that the launch sets or leaves at its
            own default.
        seq_len: tokens of a sample;
        global_batch: samples a step; 0 = not given.
        precision: precision of the job; empty = not given.
        dropout: attention or hidden dropout is on.
        settings: all settings with their verdicts.
        notes: assumptions and omissions, a line each.
        refused: rules of the framework itself that the launch breaks, so that it would not start.
        train: trained parameters (`model.freeze_parameters_or_add_lora.parse_training`); empty =
            all of the model.
        possible: (axis, values) that the framework supports, where its runtime has more values; the
            search for better strategies uses only these.
    """

    framework: str
    runtime: str
    grid: Grid
    seq_len: int
    global_batch: int
    precision: str
    dropout: bool
    settings: tuple[LaunchSetting, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[Violation, ...] = ()
    train: str = ""
    possible: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def of(self, *verdicts: Verdict) -> tuple[LaunchSetting, ...]:
        """Settings of the launch whose verdict is one of `verdicts`, in order."""
        return tuple(setting for setting in self.settings if setting.verdict in verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Settings from all files of one launch, under the framework's own names.

    Args:
        arguments: name, in lower case with dashes -> value.
        notes: notes on how the settings were found.
        program: program that a script starts (`Document.program`); empty = files only.
        node_devices: devices of a node of the cluster.
    """

    arguments: Arguments
    notes: tuple[str, ...] = ()
    program: str = ""
    node_devices: int = NODE_DEVICES


class ReadsLaunch(Protocol):
    """A function that converts a launch's settings to a `Launch`."""

    def __call__(
        self, file_settings: FileSettings, *, model: Model, devices: int, runtime: str
    ) -> Launch:
        """Convert the settings to a launch of `model` on `devices` devices, under a runtime."""


class NamesSettings(Protocol):
    """A function that writes a grid as a framework's settings."""

    def __call__(self, grid: Grid, *, runtime: str, global_batch: int) -> Arguments:
        """The settings by which a framework runs a strategy under a runtime; none if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReader:
    """A framework whose launch files are read, with the function that reads them.

    Args:
        name: name on the command line.
        runtime: catalog name of the framework's runtime, where the user names no other.
        signature: properties that identify the framework's files.
        read: function that converts settings to a launch.
        settings: the framework's table of settings, where it has one.
        evidence: function that gives the evidence that a file belongs to this framework.
        includes: frameworks whose files are part of its launches.
        target: export target that writes a strategy in this framework's settings, or under names
            that `own_name` converts to them; empty = none.
        own_name: function from a setting's name in that export to the framework's name.
        settings_of: function that writes a strategy in the framework's settings, where no export
            does.
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
        """Evidence in a file for this reader's framework: programs, launchers and settings."""
        return self.evidence(self.signature, document)


def default_notes(
    defaults: Mapping[str, str], source: str, *, files: str = "these files do"
) -> tuple[str, ...]:
    """Note that lists the framework's defaults of unset settings, and source; empty if none.

    Args:
        source: where the defaults are documented.
        files: what does not set them, with its verb.
    """
    if not defaults:
        return ()
    named = ", ".join(f"{name} {value}" for name, value in defaults.items())
    return (f"assumed, as {files} not set them: {named} ({source})",)
