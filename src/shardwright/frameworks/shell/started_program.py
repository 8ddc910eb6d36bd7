"""The program that a command of a script starts, the launchers before it, and the program's
arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.shell.expand_words import expanded, words_of
from shardwright.frameworks.shell.variables import Variables
from shardwright.lazy_dataclass import dataclass

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
"""Commands that start another one."""
_NOTHING: Final = Variables(values={})
_TORCHRUN: Final = "torch.distributed.run"
"""The module of torchrun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The program that a command starts, with its launchers and arguments.

    Args:
        program: path, module, or the first two words of a console command; empty = not found.
        launchers: names of the commands before it, with the words of each.
        words: the program's arguments.
    """

    program: str
    launchers: tuple[tuple[str, tuple[str, ...]], ...]
    words: tuple[str, ...]


def started(command: Sequence[str]) -> Started:
    """The program of a command and its arguments; words that are commands themselves, as of ``bash
    -c``, are opened.
    """
    words = [
        piece for word in command for piece in (_opened(word) if _is_command(word) else (word,))
    ]
    at = _program(words)
    before = words[: at if at >= 0 else len(words)]
    launchers = _launchers(before)
    if at < 0:
        return Started(program="", launchers=launchers, words=_arguments(words))
    program, end = words[at], at + 1
    if (
        not program.endswith(".py")
        and words[at - 1 : at] != ["-m"]
        and end < len(words)
        and not words[end].startswith("-")
    ):
        program, end = f"{PurePosixPath(program).name} {words[end]}", end + 1
    return Started(program=program, launchers=launchers, words=_arguments(words[end:]))


def _program(words: Sequence[str]) -> int:
    """Index of the program among the words: the first Python file or module that is no launcher,
    else the first word that is no launcher; -1 if there is none.
    """
    files = [
        n for n, word in enumerate(words) if word.endswith(".py") or words[n - 1 : n] == ["-m"]
    ]
    own = [
        n
        for n in files
        if not words[n].startswith("torch.distributed") and not words[n].endswith("launch.py")
    ]
    if own:
        return own[0]
    if not words or words[0].startswith("-") or PurePosixPath(words[0]).name in _LAUNCHERS:
        return -1
    return 0


def _launchers(words: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        name = PurePosixPath(word).name
        if name in _LAUNCHERS or word == _TORCHRUN:
            found.append(("torchrun" if word == _TORCHRUN else name, []))
        elif found:
            found[-1][1].append(word)
    return tuple((name, tuple(rest)) for name, rest in found)


def _arguments(words: Sequence[str]) -> tuple[str, ...]:
    # What the script is called with is not known here.
    return tuple(
        word for word in words if not _REDIRECTED.fullmatch(word) and word not in ("$@", "$*")
    )


def _is_command(word: str) -> bool:
    """True if a word is a whole command with its own words; the output of a command is not."""
    return (
        " --" in f" {word}"
        and " " in word.strip()
        and not (word.startswith(("$(", "`")) and word.endswith((")", "`")))
    )


def _opened(word: str) -> Sequence[str]:
    """The words of a command in a word, as of ``bash -c``;
    what a command would print is one word.
    """
    try:
        return [piece for part in words_of(word) for piece in expanded(part, _NOTHING)]
    except DataError:
        return word.split()
