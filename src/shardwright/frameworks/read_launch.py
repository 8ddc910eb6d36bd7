"""Reading of a launch from its files: framework, settings, strategy and job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.python_recipes import CHOICES
from shardwright.frameworks.launch.build_launch import option_variables
from shardwright.frameworks.launch.compare_checkpoint_name_to_model import compared_checkpoint
from shardwright.frameworks.launch.environment_variable_warnings import (
    needed_variables,
    slowing_variables,
)
from shardwright.frameworks.launch.framework_detection import (
    Claimant,
    Document,
    best_claimant,
    included_frameworks,
    joined_claims,
)
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    NODE_DEVICES,
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.launch_files_to_setting_documents import (
    ARGUMENTS,
    CONFIGURATION_SUFFIXES,
    documents_of_files,
    read_text,
)
from shardwright.frameworks.referenced_files import FileLookup, with_named_files
from shardwright.frameworks.registry import READERS, claimants
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.runtime_registry import load_runtime

LEAST_UNDERSTOOD: Final = 0.6
"""Smallest share of a file's settings that a reader has to understand."""


def read_launch(
    paths: Sequence[str],
    *,
    model: Model,
    devices: int,
    node_devices: int = NODE_DEVICES,
    framework: str = "",
    runtime: str = "",
    given: Mapping[str, str] | None = None,
) -> Launch:
    """Read files, or texts of arguments (``--...``), into a `Launch`; later settings win.

    Args:
        paths: shell scripts, JSON, YAML, TOML or Python files; or arguments as text, which begin
            with ``--``.
        devices: devices of the cluster.
        node_devices: devices of one node.
        framework: name of a reader; empty = the framework whose settings are found.
        runtime: catalog name; empty = the reader's runtime.
        given: values of a script's variables.

    Raises:
        DataError: a file cannot be read, or belongs to no known framework.
        UsageError: there is no such framework.
    """
    files = [
        (
            (ARGUMENTS, path)
            if path.lstrip().startswith("--")
            else (Path(path).name, read_text(Path(path)))
        )
        for path in paths
    ]
    folders = [Path(path).parent for path in paths if not path.lstrip().startswith("--")]
    return launch_of_files(
        files,
        model=model,
        devices=devices,
        node_devices=node_devices,
        framework=framework,
        runtime=runtime,
        given=given,
        beside=lambda name: _text_beside(name, folders),
    )


def launch_of_files(
    files: Sequence[tuple[str, str]],
    *,
    model: Model,
    devices: int,
    node_devices: int = NODE_DEVICES,
    framework: str = "",
    runtime: str = "",
    given: Mapping[str, str] | None = None,
    beside: FileLookup = lambda _: None,
) -> Launch:
    """Read files, given as (name, text), into a `Launch`; settings of a later file take precedence.

    Args:
        files: name and text of each file; the name's suffix gives the form, and `ARGUMENTS` is the
            name of arguments.
        beside: function from a file's name to its text, for files that others name; None = no such
            file.
    """
    if framework:
        READERS.name_of(framework)
    texts = dict(files)

    def text_of_source(name: str) -> str | None:
        """Text of a file given by the user, or of one beside the given files; else None."""
        return texts.get(Path(name).name) or beside(name)

    variables = {**_function_named(files, given or {}, framework), **(given or {})}
    documents = documents_of_files(files, variables, framework, text_of_source)
    reader = _reader_of_files(documents, framework)
    read = with_named_files(
        _launch_documents(documents, reader), _frameworks_of_launch(reader), text_of_source
    )
    merged = _merged_settings(read, _frameworks_of_launch(reader))
    _require_settings(merged, read, reader)
    released = reader.signature.runtime_of
    runtime, why = (
        (runtime, "") if runtime else released(merged) if released else (reader.runtime, "")
    )
    environment = {name: value for document in read for name, value in document.environment.items()}
    merged |= option_variables(load_runtime(runtime), environment)
    notes = (
        *(note for document in read for note in document.notes),
        *_process_count_notes(read, devices),
        *((why,) if why else ()),
    )
    program = next((document.program for document in read if document.program), "")
    written = FileSettings(
        arguments=merged, notes=notes, program=program, node_devices=node_devices
    )
    launch = reader.read(written, model=model, devices=devices, runtime=runtime)
    launch = replace(
        launch, settings=tuple(compared_checkpoint(setting, model) for setting in launch.settings)
    )
    for document in read:
        _require_understood(launch, document, reader)
    needed = (
        needed_variables(launch.framework, launch.grid, environment)
        if any(document.is_script for document in read)
        else ()
    )
    slow = slowing_variables(environment, counted=merged)
    return replace(launch, settings=(*launch.settings, *slow), notes=(*launch.notes, *needed))


def _function_named(
    files: Sequence[tuple[str, str]], given: Mapping[str, str], framework: str
) -> Mapping[str, str]:
    """{recipe or config setting: function} that the scripts' options name; {} if no .py is given.

    The result is by the name of the setting.
    """
    if not any(Path(name).suffix.lower() == ".py" for name, _ in files):
        return {}
    scripts = [
        (name, text)
        for name, text in files
        if Path(name).suffix.lower() not in CONFIGURATION_SUFFIXES
    ]
    return {
        name: document.settings[name]
        for document in documents_of_files(scripts, given, framework)
        for name in CHOICES
        if name in document.settings and document.settings[name].isidentifier()
    }


def _frameworks_of_launch(reader: LaunchReader) -> list[Claimant]:
    """The reader, then the frameworks whose files may be part of its launches."""
    parts = sorted(included_frameworks(reader.name, claimants()) - {reader.name})
    return [reader, *(claimants()[name] for name in parts if name in claimants())]


def _merged_settings(
    documents: Sequence[Document], frameworks: Sequence[Claimant]
) -> dict[str, str]:
    """Settings of documents and launchers merged; later ones win, ``auto`` replaces no value."""
    launchers = {launcher for framework in frameworks for launcher in framework.signature.launchers}
    merged: dict[str, str] = {}
    for document in documents:
        merged |= {
            name: value
            for name, value in document.launched.items()
            if name.partition(".")[0] in launchers
        }
        # "auto" of DeepSpeed's files is what the program has.
        merged |= {
            name: value
            for name, value in document.settings.items()
            if value != "auto" or name not in merged
        }
    return merged


def _process_count_notes(documents: Sequence[Document], devices: int) -> Iterator[str]:
    """Notes if torchrun's processes or a manifest's devices are not as many as the cluster's."""
    for document in documents:
        nodes, each = (
            document.launched.get(f"torchrun.{name}", "") for name in ("nnodes", "nproc-per-node")
        )
        if (
            all(text.isascii() and text.isdigit() and len(text) < 8 for text in (nodes, each))
            and int(nodes) * int(each) != devices
        ):
            yield (
                f"torchrun starts {int(nodes) * int(each):,} processes, CLUSTER has {devices:,}"
                " devices"
            )
        if document.devices not in (0, devices):
            yield (
                f"the manifest asks for {document.devices:,} devices, CLUSTER has {devices:,}"
                " devices"
            )


def _require_settings(
    merged: Mapping[str, str], documents: Sequence[Document], reader: LaunchReader
) -> None:
    """Raise DataError if the merged settings are empty, naming variables without a value.

    Raises:
        DataError: there are none; the message names variables without a value.
    """
    if merged:
        return
    waits = [word for document in documents for word in document.positional if "$" in word]
    where = f" but those of {', '.join(waits)[:80]}, which the script does not say" if waits else ""
    hint = (
        f"--set {waits[0].strip('${}')[:40]}=VALUE"
        if waits
        else "the script that starts the training, with its settings"
    )
    raise DataError(
        f"{', '.join(document.name for document in documents)[:80]}: no settings of"
        f" {reader.name}{where}",
        hint=hint,
    )


def _text_beside(name: str, folders: Sequence[Path]) -> str | None:
    """Text of a file by its path or name in the folders of the given files; None if absent."""
    path = Path(name)
    if not path.name or "\0" in name:
        return None
    for folder in folders:
        for candidate in (folder / path, folder / path.name):
            if candidate.is_file() and ".." not in path.parts:
                return read_text(candidate)
    return None


def settings_of_files(files: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Setting -> text of all documents in files, given as (name, text); later ones win.

    Raises:
        DataError: a file cannot be read.
    """
    documents = documents_of_files(files, {})
    return {name: value for document in documents for name, value in document.settings.items()}


def _reader_of_files(documents: Sequence[Document], framework: str) -> LaunchReader:
    """Reader of the framework named, else of the strongest claim; DataError if it is not read.

    Raises:
        DataError: no reader exists for the files, or they have no setting of the named framework.
    """
    if framework:
        reader = READERS.load(framework)
        parts = included_frameworks(framework, claimants())
        if not any(
            claimants()[part].claims(document).evidence
            for part in parts
            if part in claimants()
            for document in documents
        ):
            raise DataError(
                f"{', '.join(document.name for document in documents)[:80]}: no setting that is"
                f" {framework}'s",
                hint="leave --from out to see of what",
            )
        return reader
    best = best_claimant(documents, claimants())
    if best in READERS:
        return READERS.load(best)
    evidence = joined_claims(claimants()[best].claims(document) for document in documents).evidence
    raise DataError(
        f"{', '.join(document.name for document in documents)[:80]}: files of {best}"
        f" ({', '.join(evidence[:3])[:80]}), which are not read",
        hint=f"read are those of {', '.join(READERS)}",
    )


def _launch_documents(documents: Sequence[Document], reader: LaunchReader) -> list[Document]:
    """Documents claimed by a reader's frameworks, or given and by none; DataError if another's.

    Raises:
        DataError: a file that the user names is claimed by another framework alone.
    """
    parts = included_frameworks(reader.name, claimants())
    launch_documents = []
    for document in documents:
        claims = {
            name: claim
            for name, claimant in claimants().items()
            if (claim := claimant.claims(document)).evidence
        }
        other_frameworks = sorted(
            name for name, claim in claims.items() if claim.programs or claim.own
        )
        if claims.keys() & parts or (document.named and not other_frameworks):
            launch_documents.append(document)
        elif document.named:
            raise DataError(
                f"{document.name[:60]} is {' or '.join(other_frameworks)}'s, the other files are"
                f" {reader.name}'s",
                hint="give the files of one launch alone",
            )
    return launch_documents


def _require_understood(launch: Launch, document: Document, reader: LaunchReader) -> None:
    """Raise DataError if too few settings (`LEAST_UNDERSTOOD`) of the framework's file are known.

    At least `LEAST_UNDERSTOOD` of them have to be understood.

    Raises:
        DataError: fewer are; the message names the others.
    """
    claims = [framework.claims(document) for framework in _frameworks_of_launch(reader)]
    if not any(claim.programs or claim.own for claim in claims):
        return
    unknown = [
        setting.name for setting in launch.of(Verdict.UNKNOWN) if setting.name in document.settings
    ]
    if len(unknown) > (1 - LEAST_UNDERSTOOD) * len(document.settings):
        raise DataError(
            f"{document.name[:60]}: {len(document.settings) - len(unknown)} of"
            f" {len(document.settings)} settings are understood as {reader.name}'s; not"
            f" {', '.join(unknown)[:200]}",
            hint=(
                f"at least {LEAST_UNDERSTOOD:.0%} have to be; is it a file of another framework, or"
                " of a fork?"
            ),
        )
