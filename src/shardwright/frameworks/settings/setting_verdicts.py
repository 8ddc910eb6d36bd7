"""Verdicts on the settings of a launch: understood, the model's, without effect, or unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from shardwright.errors import nearest
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import entry_of
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.parse_launch_arguments import Arguments


class Verdict(StrEnum):
    """The planner's verdict on a setting of a launch.

    UNDERSTOOD: part of the strategy, the job or an option. OF_THE_MODEL, DIFFERENT: the model's,
    equal to MODEL's or not. IGNORED: no effect on time and memory. IDLE: no effect beside the
    launch's other settings. UNKNOWN: not understood.
    """

    UNDERSTOOD = "understood"
    OF_THE_MODEL = "the model's"
    DIFFERENT = "another model"
    IGNORED = "changes nothing"
    IDLE = "no effect in this launch"
    UNKNOWN = "not understood"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSetting:
    """A setting of a launch, with the planner's verdict.

    Args:
        name, value: the framework's name and value, without leading dashes.
        verdict: the planner's verdict.
        means: meaning, reason for no effect, or similar names.
    """

    name: str
    value: str
    verdict: Verdict
    means: str = ""


def setting_verdicts(
    arguments: Arguments,
    *,
    understood: Mapping[str, str],
    model: Iterable[LaunchSetting] = (),
    ignored: Mapping[str, str],
    unmodelled: Mapping[str, str] | None = None,
) -> Iterator[LaunchSetting]:
    """Yield a verdict on each setting, then MODEL's verdicts on settings that are not there.

    Args:
        understood: name -> meaning.
        model: verdicts on settings of the model.
        ignored: name, or prefix that ends in ``*``, -> reason why the setting has no effect.
        unmodelled: name -> effect that is not counted.
    """
    of_model = {setting.name: setting for setting in model}
    for name, value in arguments.items():
        if name in understood:
            yield LaunchSetting(
                name=name, value=value, verdict=Verdict.UNDERSTOOD, means=understood[name]
            )
        elif name in of_model:
            yield of_model[name]
        elif (why := entry_of(name, ignored)) is not None:
            yield LaunchSetting(name=name, value=value, verdict=Verdict.IGNORED, means=why)
        elif unmodelled and name in unmodelled:
            yield LaunchSetting(
                name=name,
                value=value,
                verdict=Verdict.UNKNOWN,
                means=f"not counted: {unmodelled[name]}",
            )
        else:
            names = (*understood, *of_model, *(name for name in ignored if not name.endswith("*")))
            yield LaunchSetting(
                name=name,
                value=value,
                verdict=Verdict.UNKNOWN,
                means=_similar_names_hint(name, names),
            )
    yield from (one for name, one in of_model.items() if name not in arguments)


def _similar_names_hint(name: str, names: Iterable[str]) -> str:
    """Hint with known names similar to an unknown one; empty if none is similar."""
    hint = nearest(name, names)
    return hint if hint.startswith("did") else ""
