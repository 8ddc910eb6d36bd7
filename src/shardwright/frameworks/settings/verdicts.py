"""Verdicts on the settings of a launch: understood, the model's, without effect, or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from shardwright.errors import nearest
from shardwright.frameworks.settings.name_lists import entry_of
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.launch_arguments import Arguments


class Verdict(StrEnum):
    """The planner's verdict on a setting: part of the strategy, the job or an option; the model's,
    as MODEL has it or not; without effect on time and memory here; without effect beside the
    launch's other settings; or unknown.
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


def judged(
    arguments: Arguments,
    *,
    understood: Mapping[str, str],
    model: Iterable[Setting] = (),
    ignored: Mapping[str, str],
    unmodelled: Mapping[str, str] | None = None,
) -> Iterator[Setting]:
    """Every setting with its verdict, in the order of the files.

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
        elif (why := entry_of(name, ignored)) is not None:
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
