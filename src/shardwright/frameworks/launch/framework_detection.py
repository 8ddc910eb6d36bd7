"""Recognition of the framework that a launch file belongs to, by settings of that framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Final, Protocol

from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.parse_launch_arguments import Arguments


class FileKind(StrEnum):
    """Form of a launch file: a configuration format, a table, or a command with its arguments.

    A command is one of a script, or arguments that are given as text.
    """

    COMMAND = "command"
    JSON = "JSON"
    YAML = "YAML"
    TOML = "TOML"
    PYTHON = "Python"
    CSV = "CSV"


CONFIGURATIONS: Final = frozenset({FileKind.JSON, FileKind.YAML, FileKind.TOML})


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A setting that names another file with settings of the launch.

    Args:
        setting: the setting's name; empty = the program's first argument, such as
            ``configs/llama.yml``.
        holds: contents of the file in words, for messages.
        instead: settings, any of which replaces the file where it is missing.
        own: names of files that the framework itself ships; their values are its defaults.
        ending: suffix that the framework adds to the value to get the file's name.
    """

    setting: str
    holds: str
    instead: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    ending: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Settings of one launch file, or of one command of a script, before a reader is chosen.

    Args:
        name: the file's name, for messages.
        settings: name, in lower case with dashes -> value.
        program: program that a command starts: a path, a module, or the first two words of a
            console command, such as ``tune run``.
        launchers: commands that start the program, by their names: ``accelerate``, ``deepspeed``.
        launched: settings of the launchers, with the launcher's name before each:
            ``accelerate.config-file``.
        positional: words before the first setting of a command.
        named: the user gave the file; a script that writes a file does not name it so.
        is_script: it is a command of a script.
        environment: variables of the script.
        notes: notes on parts of the file that were not followed.
        written: files that the script has a command write that is not followed, name -> the
            command.
        missing: scripts that the script reads or starts and that are not there, name -> line.
        devices: devices that the file asks for; 0 = not given.
    """

    name: str
    kind: FileKind
    settings: Arguments
    program: str = ""
    launchers: frozenset[str] = frozenset()
    launched: Arguments = field(default_factory=dict)
    positional: tuple[str, ...] = ()
    named: bool = True
    is_script: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Programs, launchers and settings by which a framework's files are recognised.

    Args:
        kinds: forms of the framework's files.
        programs: programs of its own, as paths, modules or words of a console command, in lower
            case.
        launchers: commands of its own that start the user's programs.
        own: settings that no other framework has; one that ends in ``*`` is the beginning of names.
        shared: settings that it has with others, which decide only between two claims that are
            equal otherwise.
        files: settings that name further files of a launch.
        runtime_of: function that gives the runtime of the release that has all settings of a
            launch, and the reason why it is not the usual one; None = all launches have one
            runtime.
    """

    kinds: frozenset[FileKind]
    programs: frozenset[str] = frozenset()
    launchers: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    files: tuple[NamedFile, ...] = ()
    runtime_of: Callable[[Arguments], tuple[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Evidence that files belong to a framework; an empty claim is none.

    Args:
        programs: the framework's programs that a command starts.
        launchers: the framework's launchers that a command uses.
        own, shared: names of settings, as in `Signature`.
    """

    programs: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def strength(self) -> tuple[int, int, int]:
        """Sort key of a claim: counts of (programs, own settings + launchers, shared settings)."""
        return (len(self.programs), len(self.own) + len(self.launchers), len(self.shared))

    @property
    def evidence(self) -> tuple[str, ...]:
        """All programs, launchers and settings of the claim, the strongest first."""
        return (*self.programs, *self.launchers, *self.own, *self.shared)


NO_CLAIM: Final = Claim()


class Claimant(Protocol):
    """A framework that can claim launch files."""

    @property
    def name(self) -> str:
        """Name of the framework."""

    @property
    def signature(self) -> Signature:
        """The properties by which the reader's files are recognised."""

    @property
    def includes(self) -> frozenset[str]:
        """Names of frameworks whose files may be part of a launch (DeepSpeed for Accelerate)."""

    def claims(self, document: Document) -> Claim:
        """Evidence in a file for this framework: programs, launchers and settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFramework:
    """A framework whose files are recognised but not read: they are refused by its name."""

    name: str
    signature: Signature
    includes: frozenset[str] = frozenset()

    def claims(self, document: Document) -> Claim:
        """Evidence in a file for this framework: programs, launchers and settings."""
        return claim_of(self.signature, document)


def claim_of(signature: Signature, document: Document) -> Claim:
    """Claim on a file by a signature: the programs, launchers and settings that it matches."""
    if document.kind not in signature.kinds:
        return NO_CLAIM
    starts = tuple(name[:-1] for name in signature.own if name.endswith("*"))
    own = [
        name
        for name in document.settings
        if name in signature.own or (starts and name.startswith(starts))
    ]
    program = document.program.lower()
    return Claim(
        programs=tuple(
            program_name
            for program_name in sorted(signature.programs)
            if program == program_name or program.endswith(f"/{program_name}")
        )[:1],
        launchers=tuple(sorted(signature.launchers & document.launchers)),
        own=tuple(own),
        shared=tuple(sorted(signature.shared & document.settings.keys())),
    )


def joined_claims(claims: Iterable[Claim]) -> Claim:
    """Claim with the evidence of several files together, each name once."""
    all_claims = tuple(claims)
    return Claim(
        programs=tuple(
            dict.fromkeys(program for claim in all_claims for program in claim.programs)
        ),
        launchers=tuple(
            dict.fromkeys(launcher for claim in all_claims for launcher in claim.launchers)
        ),
        own=tuple(dict.fromkeys(name for claim in all_claims for name in claim.own)),
        shared=tuple(dict.fromkeys(name for claim in all_claims for name in claim.shared)),
    )


def included_frameworks(name: str, claimants: Mapping[str, Claimant]) -> frozenset[str]:
    """Names of a framework and, step by step, of all whose files may be part of its launches."""
    frameworks, new = {name}, {name}
    while new:
        new = {
            framework for part in new if part in claimants for framework in claimants[part].includes
        } - frameworks
        frameworks |= new
    return frozenset(frameworks)


def best_claimant(documents: Sequence[Document], claimants: Mapping[str, Claimant]) -> str:
    """Framework with the strongest claim, not part of another's; DataError if none or a tie.

    Frameworks whose files are part of another claimant's launches do not count.

    Raises:
        DataError: no framework claims the files, or two claim them equally.
    """
    names = ", ".join(dict.fromkeys(document.name for document in documents))[:80]
    claims = {
        name: joined_claims(claimant.claims(document) for document in documents)
        for name, claimant in claimants.items()
    }
    claims = {name: claim for name, claim in claims.items() if claim.evidence}
    if not claims:
        raise DataError(
            f"{names}: no setting that only one framework has",
            hint="--from NAME, where the framework of the files is read",
        )
    parts = {part for name in claims for part in included_frameworks(name, claimants) - {name}}
    # Two that include each other are compared as if neither did.
    heads = [name for name in claims if name not in parts] or list(claims)
    ranked = sorted(heads, key=lambda name: claims[name].strength, reverse=True)
    best = claims[ranked[0]].strength
    equal = [name for name in ranked if claims[name].strength == best]
    if len(equal) > 1:
        raise DataError(
            f"{names}: files of {' or '.join(equal)}; all of them have"
            f" {', '.join(claims[equal[0]].evidence[:3])[:80]}",
            hint=f"--from {equal[0]} or another of these",
        )
    return equal[0]
