"""Files of a launch -> the launch:
which framework they are of, their settings, and what these say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.python_recipes import CHOICES
from shardwright.frameworks.launch.checkpoint_names import compared
from shardwright.frameworks.launch.environment_variables import (
    needed_variables,
    slowing_variables,
)
from shardwright.frameworks.launch.framework_claims import (
    Claimant,
    Document,
    best_claimant,
    joined,
    parts_of,
)
from shardwright.frameworks.launch.launch import NODE_DEVICES, Launch, LaunchReader, Written
from shardwright.frameworks.launch.launch_degrees import variables_that_set
from shardwright.frameworks.named_files import Beside, with_named
from shardwright.frameworks.read_documents import (
    ARGUMENTS,
    CONFIGURATION_SUFFIXES,
    chosen,
    documents_of,
    read_text,
)
from shardwright.frameworks.registry import READERS, claimants
from shardwright.frameworks.settings.verdicts import Verdict
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.runtime_registry import load_runtime

LEAST_UNDERSTOOD: Final = 0.6
"""Least share of the settings of a file that a reader has to understand."""


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
    """The launch that files say together; a later file's settings come before an earlier one's.

    Args:
        paths: shell scripts, JSON, YAML, TOML or Python files; or arguments as text, which begin
            with ``--``.
        devices: of the cluster;
        node_devices: of one of its nodes.
        framework: word of a reader; empty = the one whose settings are found.
        runtime: catalog name; empty = the reader's.
        given: values of a script's variables.

    Raises:
        DataError: a file cannot be read, or is of no framework that is known. UsageError: there is
        no such framework.
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
        beside=lambda name: _beside(name, folders),
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
    beside: Beside = lambda _: None,
) -> Launch:
    """See `read_launch`.

    Args:
        files: name, whose ending says what it is, and text of each; `ARGUMENTS` is the name of
            arguments.
        beside: the text of a file that a file names, by that name; None = it is not there.
    """
    if framework:
        READERS.name_of(framework)
    texts = dict(files)

    def sources(name: str) -> str | None:
        return texts.get(Path(name).name) or beside(name)

    known = {**_function_named(files, given or {}, framework), **(given or {})}
    documents = [
        one
        for name, text in files
        for one in chosen(list(documents_of(text, name, known, sources)), framework)
    ]
    reader = _reader(documents, framework)
    read = with_named(_of_the_launch(documents, reader), _claimants(reader), sources)
    merged = _merged(read, _claimants(reader))
    _require_settings(merged, read, reader)
    released = reader.signature.runtime_of
    runtime, why = (
        (runtime, "") if runtime else released(merged) if released else (reader.runtime, "")
    )
    environment = {name: value for one in read for name, value in one.environment.items()}
    merged |= variables_that_set(load_runtime(runtime), environment)
    notes = (
        *(note for one in read for note in one.notes),
        *_sizes(read, devices),
        *((why,) if why else ()),
    )
    program = next((one.program for one in read if one.program), "")
    written = Written(arguments=merged, notes=notes, program=program, node_devices=node_devices)
    launch = reader.read(written, model=model, devices=devices, runtime=runtime)
    launch = replace(launch, settings=tuple(compared(one, model) for one in launch.settings))
    for document in read:
        _require_understood(launch, document, reader)
    needed = (
        needed_variables(launch.framework, launch.grid, environment)
        if any(one.is_script for one in read)
        else ()
    )
    slow = slowing_variables(environment, counted=merged)
    return replace(launch, settings=(*launch.settings, *slow), notes=(*launch.notes, *needed))


def _function_named(
    files: Sequence[tuple[str, str]], given: Mapping[str, str], framework: str
) -> Mapping[str, str]:
    """The function of a Python file that a command beside it names,
    such as ``--config llama3_8b``.
    """
    if not any(Path(name).suffix.lower() == ".py" for name, _ in files):
        return {}
    scripts = [
        (name, text)
        for name, text in files
        if Path(name).suffix.lower() not in CONFIGURATION_SUFFIXES
    ]
    found = [
        one
        for name, text in scripts
        for one in chosen(list(documents_of(text, name, given)), framework)
    ]
    return {
        name: one.settings[name]
        for one in found
        for name in CHOICES
        if name in one.settings and one.settings[name].isidentifier()
    }


def _claimants(reader: LaunchReader) -> list[Claimant]:
    """The reader, then the frameworks whose files are part of its launches."""
    parts = sorted(parts_of(reader.name, claimants()) - {reader.name})
    return [reader, *(claimants()[name] for name in parts if name in claimants())]


def _merged(documents: Sequence[Document], frameworks: Sequence[Claimant]) -> dict[str, str]:
    """The settings of files together, those of the reader's own launchers among them."""
    launchers = {launcher for framework in frameworks for launcher in framework.signature.launchers}
    merged: dict[str, str] = {}
    for one in documents:
        merged |= {
            name: value
            for name, value in one.launched.items()
            if name.partition(".")[0] in launchers
        }
        # "auto" of DeepSpeed's files is what the program has.
        merged |= {
            name: value
            for name, value in one.settings.items()
            if value != "auto" or name not in merged
        }
    return merged


def _sizes(documents: Sequence[Document], devices: int) -> Iterator[str]:
    """A note where launchers start another number of processes than the cluster has devices."""
    for one in documents:
        nodes, each = (
            one.launched.get(f"torchrun.{name}", "") for name in ("nnodes", "nproc-per-node")
        )
        if (
            all(text.isascii() and text.isdigit() and len(text) < 8 for text in (nodes, each))
            and int(nodes) * int(each) != devices
        ):
            yield (
                f"torchrun starts {int(nodes) * int(each):,} processes, CLUSTER has {devices:,}"
                " devices"
            )
        if one.devices not in (0, devices):
            yield f"the manifest asks for {one.devices:,} devices, CLUSTER has {devices:,} devices"


def _require_settings(
    merged: Mapping[str, str], documents: Sequence[Document], reader: LaunchReader
) -> None:
    """Check that a launch says something: without a setting all of it would be the framework's
    defaults.

    Raises:
        DataError: it says nothing; with the variables that the script does not say.
    """
    if merged:
        return
    waits = [word for one in documents for word in one.positional if "$" in word]
    where = f" but those of {', '.join(waits)[:80]}, which the script does not say" if waits else ""
    hint = (
        f"--set {waits[0].strip('${}')[:40]}=VALUE"
        if waits
        else "the script that starts the training, with its settings"
    )
    raise DataError(
        f"{', '.join(one.name for one in documents)[:80]}: no settings of {reader.name}{where}",
        hint=hint,
    )


def _beside(name: str, folders: Sequence[Path]) -> str | None:
    """The text of a file that lies where its name says, seen from the folder of a file that was
    given, or in that folder itself.
    """
    path = Path(name)
    if not path.name or "\0" in name:
        return None
    for folder in folders:
        for one in (folder / path, folder / path.name):
            if one.is_file() and ".." not in path.parts:
                return read_text(one)
    return None


def settings_of_files(files: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The settings of files by their names and texts.

    Raises:
        DataError: one cannot be read.
    """
    found = [one for file, text in files for one in chosen(list(documents_of(text, file, {})), "")]
    return {name: value for one in found for name, value in one.settings.items()}


def _reader(documents: Sequence[Document], framework: str) -> LaunchReader:
    """The reader of the framework that the files are of, or that the user names.

    Raises:
        DataError: they are of none that is read, or of the named one they have nothing.
    """
    if framework:
        reader = READERS.load(framework)
        parts = parts_of(framework, claimants())
        if not any(
            claimants()[part].claims(one).evidence
            for part in parts
            if part in claimants()
            for one in documents
        ):
            raise DataError(
                f"{', '.join(one.name for one in documents)[:80]}: no setting that is"
                f" {framework}'s",
                hint="leave --from out to see of what",
            )
        return reader
    best = best_claimant(documents, claimants())
    if best in READERS:
        return READERS.load(best)
    evidence = joined(claimants()[best].claims(one) for one in documents).evidence
    raise DataError(
        f"{', '.join(one.name for one in documents)[:80]}: files of {best}"
        f" ({', '.join(evidence[:3])[:80]}), which are not read",
        hint=f"read are those of {', '.join(READERS)}",
    )


def _of_the_launch(documents: Sequence[Document], reader: LaunchReader) -> list[Document]:
    """The files that are of a reader's launch: those that it or a framework that it includes
    claims, and those that nobody claims.

    Raises:
        DataError: a file that the user names is claimed by another framework alone.
    """
    parts = parts_of(reader.name, claimants())
    found = []
    for document in documents:
        claims = {
            name: claim
            for name, one in claimants().items()
            if (claim := one.claims(document)).evidence
        }
        others = sorted(name for name, claim in claims.items() if claim.programs or claim.own)
        if claims.keys() & parts or (document.named and not others):
            found.append(document)
        elif document.named:
            raise DataError(
                f"{document.name[:60]} is {' or '.join(others)}'s, the other files are"
                f" {reader.name}'s",
                hint="give the files of one launch alone",
            )
    return found


def _require_understood(launch: Launch, document: Document, reader: LaunchReader) -> None:
    """Check that of the settings of a file that is the framework's own at least `LEAST_UNDERSTOOD`
    are understood.

    Raises:
        DataError: fewer are; it names those that are not.
    """
    claims = [one.claims(document) for one in _claimants(reader)]
    if not any(claim.programs or claim.own for claim in claims):
        return
    unknown = [one.name for one in launch.of(Verdict.UNKNOWN) if one.name in document.settings]
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
