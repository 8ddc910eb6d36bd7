"""Program that a shell command starts, with launchers such as torchrun and arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.shell.expand_words import expanded, words_of
from shardwright.frameworks.shell.variables_and_positional_parameters import Variables
from shardwright.lazily_compiled_dataclass import dataclass

_REDIRECTED: Final = re.compile(r"[0-9&]?>>?|[0-9]?>&[0-9]|\d?>{1,2}.*|<.*")
_LAUNCHERS: Final = frozenset(
    {
        *(
            "accelerate",
            "deepspeed",
            "torchrun",
            "srun",
            "mpirun",
            "mpiexec",
            "bash",
            "sh",
            "python",
            "python3",
            "sudo",
            "nohup",
        ),
        *(
            "exec",
            "time",
            "env",
            "numactl",
            "nsys",
            "apptainer",
            "singularity",
            "docker",
            "pdsh",
            "ray",
            "eval",
            "uv",
            "horovodrun",
        ),
    }
)
"""Commands that start another command."""
_NOTHING: Final = Variables(values={})
_TORCHRUN: Final = "torch.distributed.run"
"""The module of torchrun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Program that a command starts, with its launchers and arguments.

    Args:
        program: path, module, or the first two words of a console command; empty = not found.
        launchers: names of the commands before it, with the words of each.
        words: the program's arguments.
    """

    program: str
    launchers: tuple[tuple[str, tuple[str, ...]], ...]
    words: tuple[str, ...]


def started(command: Sequence[str]) -> Started:
    """Program, as ``train.py`` or ``swift sft``, launchers before it and arguments of a command.

    Words that are commands themselves, as for ``bash -c``, are split.
    """
    words = [
        piece
        for word in command
        for piece in (_inner_words(word) if _is_quoted_command(word) else (word,))
    ]
    at = _program_index(words)
    before = words[: at if at >= 0 else len(words)]
    launchers = _launchers(before)
    if at < 0:
        return Started(program="", launchers=launchers, words=_program_arguments(words))
    program, end = words[at], at + 1
    if (
        not program.endswith(".py")
        and words[at - 1 : at] != ["-m"]
        and end < len(words)
        and not words[end].startswith("-")
    ):
        program, end = f"{PurePosixPath(program).name} {words[end]}", end + 1
    return Started(program=program, launchers=launchers, words=_program_arguments(words[end:]))


def _program_index(words: Sequence[str]) -> int:
    """Index of the first Python file or module, else 0; -1 if words start with launcher or option.

    It is the first Python file or module that is no launcher, else the first word that is no
    launcher.
    """
    files = [
        n for n, word in enumerate(words) if word.endswith(".py") or words[n - 1 : n] == ["-m"]
    ]
    programs = [
        n
        for n in files
        if not words[n].startswith("torch.distributed") and not words[n].endswith("launch.py")
    ]
    if programs:
        return programs[0]
    if not words or words[0].startswith("-") or PurePosixPath(words[0]).name in _LAUNCHERS:
        return -1
    return 0


def _launchers(words: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(name, words) of each launcher before the program."""
    launchers: list[tuple[str, list[str]]] = []
    for word in words:
        name = PurePosixPath(word).name
        if name in _LAUNCHERS or word == _TORCHRUN:
            launchers.append(("torchrun" if word == _TORCHRUN else name, []))
        elif launchers:
            launchers[-1][1].append(word)
    return tuple((name, tuple(rest)) for name, rest in launchers)


def _program_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Program's arguments, without redirections and ``$@``."""
    # The arguments of the script itself are unknown.
    return tuple(
        word for word in words if not _REDIRECTED.fullmatch(word) and word not in ("$@", "$*")
    )


def _is_quoted_command(word: str) -> bool:
    """True if one word is a whole command with options and spaces, and not ``$(...)``."""
    return (
        " --" in f" {word}"
        and " " in word.strip()
        and not (word.startswith(("$(", "`")) and word.endswith((")", "`")))
    )


def _inner_words(word: str) -> Sequence[str]:
    """Words of the command inside a word, as for ``bash -c``."""
    try:
        return [piece for part in words_of(word) for piece in expanded(part, _NOTHING)]
    except DataError:
        return word.split()
