"""Sentences of the change that would shorten the step most, from the report's JSON."""

from __future__ import annotations

from typing import Any


def best_improvement(time_json: Any) -> str:
    """Sentence template on the other batch, device count or option that gains most; else empty.

    Another batch or number of devices, or an option that the search did not vary.
    """
    option, size = time_json["option"], time_json["size"]
    if size is not None and (option is None or size["gain"] > option["gain"]):
        return _of_size(size)
    return faster_option(time_json)


def faster_option(time_json: Any) -> str:
    """Sentence template on the option that the search fixed and that saves most; else empty."""
    option = time_json["option"]
    if option is None:
        return ""
    command = " Search with it: {/time/option/command:command}" if option["command"] else ""
    return (
        "{/time/option/option}, an option that the search did not vary, saves"
        " {/time/option/gain:percent}: the step takes {/time/option/step_s:seconds}."
        f"{command}"
    )


def _of_size(size_json: Any) -> str:
    """Sentence template on another batch or number of devices that leaves none idle."""
    command = " Search it with {/time/size/command:command}" if size_json["command"] else ""
    return (
        "{/time/size/sequences:count} sequences a step on {/time/size/devices:count} devices leave"
        " no device idle and give {/time/size/gain:percent} more tokens/s for each device; a step"
        f" takes {{/time/size/step_s:seconds}}.{command}"
    )


def second_best(time_json: Any) -> str:
    """Sentence template on the second best plan, from `time_json`; empty if none is ranked."""
    if time_json["second"] is None:
        return ""
    return (
        "none in the searched space is faster. The second best plan, {/time/second/strategy},"
        " takes {/time/second/step_s:seconds} ({/time/second/longer:percent} longer)."
    )
