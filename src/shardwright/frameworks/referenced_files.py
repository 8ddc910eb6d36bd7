"""Reading of the files that a launch's settings name, such as a DeepSpeed configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_detection import Claimant, Document, NamedFile
from shardwright.frameworks.launch_files_to_setting_documents import documents_of

FileLookup = Callable[[str], str | None]
"""Function from a file's name to its text; None = no such file."""
_HOSTS = ("hostfile", "machinefile", "nodelist", "nodefile")
"""Settings of launchers that name the hosts."""


def with_named_files(
    documents: Sequence[Document], claimants: Sequence[Claimant], beside: FileLookup
) -> list[Document]:
    """Documents, each behind the files that its settings name; naming settings are taken out.

    Each named file stands before the document that names it, so the document's settings take
    precedence.

    Args:
        claimants: the reader and the frameworks whose files are part of its launches.

    Raises:
        DataError: a file is missing, and no other setting replaces it.
    """
    names_read = {document.name for document in documents}
    read_documents: list[Document] = []
    for document in documents:
        notes: list[str] = []
        names = list(_named_files(document, claimants))
        for named, name in names:
            if PurePosixPath(name).name in names_read or not name:
                continue
            text = None if "$" in name or "`" in name else beside(name)
            if text is None:
                notes.append(_missing_file_note(document, named, name, documents))
                continue
            names_read.add(PurePosixPath(name).name)
            read_documents += documents_of(text, PurePosixPath(name).name, {})
        notes += [
            f"the hosts of {value[:60]} are not read: CLUSTER says them"
            for value in _host_files(document)
        ]
        notes += [
            f"line {line}: {name[:60]} is not here, so what it sets is not known"
            for name, line in document.missing.items()
        ]
        # The file's own settings replace the setting that names it.
        settled = {named.setting for named, _ in names}
        settings = {name: value for name, value in document.settings.items() if name not in settled}
        read_documents.append(replace(document, settings=settings, notes=(*document.notes, *notes)))
    return read_documents


def _named_files(
    document: Document, claimants: Sequence[Claimant]
) -> Iterator[tuple[NamedFile, str]]:
    """Yield (kind of file, name) of the files that a document's settings name."""
    settings = {**document.launched, **document.settings}
    # A framework's own files are no files of the launch.
    seen = {
        word
        for word in settings.values()
        for claimant in claimants
        for named in claimant.signature.files
        if PurePosixPath(word).name in named.own
    }
    for claimant in claimants:
        if document.settings and not claimant.claims(document).evidence:
            continue
        for named in claimant.signature.files:
            word = (
                settings.get(named.setting, "")
                if named.setting
                else next(iter(document.positional), "")
            )
            # A switch names no file.
            if (
                word not in ("", "true")
                and word not in seen
                and PurePosixPath(word).name not in named.own
            ):
                seen.add(word)
                yield named, word + named.ending


def _missing_file_note(
    document: Document, named: NamedFile, name: str, documents: Sequence[Document]
) -> str:
    """Note on a missing file that other settings replace; DataError if none does.

    Raises:
        DataError: no setting replaces it.
    """
    settings = {
        setting for document in documents for setting in (*document.settings, *document.launched)
    }
    writer = document.written.get(name)
    how = f" ({writer} writes it in the script, which is not followed)" if writer else ""
    if settings & named.instead:
        return f"{name[:60]} was not given{how}; the other settings say {named.holds}"
    raise DataError(
        f"{document.name[:60]} names {name[:60]}, which was not given{how}: without it"
        f" {named.holds} is not known",
        hint="give the file before MODEL, or put it beside the file that names it",
    )


def _host_files(document: Document) -> list[str]:
    """Names of host files that a document's launcher settings name."""
    return [value for name, value in document.launched.items() if name.partition(".")[2] in _HOSTS]
