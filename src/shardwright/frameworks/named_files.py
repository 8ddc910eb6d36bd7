"""Files that a launch names: found among those that are given or beside them, and an error by name
where they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from shardwright.errors import DataError
from shardwright.frameworks.launch.framework_claims import Claimant, Document, NamedFile
from shardwright.frameworks.read_documents import documents_of

Beside = Callable[[str], str | None]
"""Name of a file -> its text; None = it is not there."""
_HOSTS = ("hostfile", "machinefile", "nodelist", "nodefile")
"""Settings of launchers that name the hosts."""


def with_named(
    documents: Sequence[Document], claimants: Sequence[Claimant], beside: Beside
) -> list[Document]:
    """Documents with those that their settings name, each before the one that names it: what a
    command says stands before its files.

    Args:
        claimants: the reader and the frameworks whose files are part of its launches.

    Raises:
        DataError: a file is not there, and nothing else says what it holds.
    """
    given = {one.name for one in documents}
    found: list[Document] = []
    for document in documents:
        notes: list[str] = []
        names = list(_named(document, claimants))
        for named, name in names:
            if PurePosixPath(name).name in given or not name:
                continue
            text = None if "$" in name or "`" in name else beside(name)
            if text is None:
                notes.append(_missing(document, named, name, documents))
                continue
            given.add(PurePosixPath(name).name)
            found += documents_of(text, PurePosixPath(name).name, {})
        notes += [
            f"the hosts of {value[:60]} are not read: CLUSTER says them"
            for value in _hosts(document)
        ]
        notes += [
            f"line {line}: {name[:60]} is not here, so what it sets is not known"
            for name, line in document.missing.items()
        ]
        # What names a file is settled by what the file says.
        settled = {named.setting for named, _ in names}
        settings = {name: value for name, value in document.settings.items() if name not in settled}
        found.append(replace(document, settings=settings, notes=(*document.notes, *notes)))
    return found


def _named(document: Document, claimants: Sequence[Claimant]) -> Iterator[tuple[NamedFile, str]]:
    """Files that a document names, with what each holds."""
    said = {**document.launched, **document.settings}
    # What a framework has itself is no file of the launch, whoever else would read one.
    seen = {
        word
        for word in said.values()
        for one in claimants
        for named in one.signature.files
        if PurePosixPath(word).name in named.own
    }
    for claimant in claimants:
        if document.settings and not claimant.claims(document).evidence:
            continue
        for named in claimant.signature.files:
            word = (
                said.get(named.setting, "")
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


def _missing(document: Document, named: NamedFile, name: str, documents: Sequence[Document]) -> str:
    """A note on the settings that a missing file leaves unknown, where another file says what it
    holds.

    Raises:
        DataError: nothing does.
    """
    said = {setting for one in documents for setting in (*one.settings, *one.launched)}
    writer = document.written.get(name)
    how = f" ({writer} writes it in the script, which is not followed)" if writer else ""
    if said & named.instead:
        return f"{name[:60]} was not given{how}; the other settings say {named.holds}"
    raise DataError(
        f"{document.name[:60]} names {name[:60]}, which was not given{how}: without it"
        f" {named.holds} is not known",
        hint="give the file before MODEL, or put it beside the file that names it",
    )


def _hosts(document: Document) -> list[str]:
    return [value for name, value in document.launched.items() if name.partition(".")[2] in _HOSTS]
