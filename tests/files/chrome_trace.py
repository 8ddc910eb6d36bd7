"""A trace file by the rules of Chrome's trace event format, and of what Perfetto makes of it."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

NAMES = {"process_name": "name", "process_labels": "labels", "process_sort_index": "sort_index"} | {
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}
"""Metadata events, and what their argument is called."""


def nanoseconds(microseconds: float) -> int:
    """As Perfetto reads a number: whole nanoseconds, cut off."""
    return int(microseconds * 1000)


def faults(text: str) -> list[str]:
    """What is wrong in a file."""
    document = json.loads(text)
    events = document["traceEvents"]
    found = (
        [f"displayTimeUnit {document.get('displayTimeUnit')}"]
        if document.get("displayTimeUnit") not in ("ms", "ns")
        else []
    )
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    named: dict[str, set[Any]] = defaultdict(set)
    flows: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for number, event in enumerate(events):
        where, phase = f"event {number}", event["ph"]
        if (
            not (
                type(event["pid"]) is int
                and type(event["tid"]) is int
                and type(event["name"]) is str
            )
            or event["pid"] < 1
        ):
            found.append(f"{where}: pid, tid or name")
        if phase != "M" and not (isinstance(event["ts"], int | float) and event["ts"] >= 0):
            found.append(f"{where}: ts")
        place = event["pid"], event["tid"]
        if phase == "M":
            value = event["args"].get(NAMES.get(event["name"], ""))
            if event["name"] not in NAMES or type(value) is not (
                int if "index" in event["name"] else str
            ):
                found.append(f"{where}: {event['name']}")
            key = event["pid"] if event["name"].startswith("process") else place
            if key in named[event["name"]]:
                found.append(f"{where}: {event['name']} twice")
            named[event["name"]].add(key)
        elif phase == "X":
            if event["dur"] < 0 or not event["cat"]:
                found.append(f"{where}: dur or cat")
            start = nanoseconds(event["ts"])
            slices[place].append((start, start + nanoseconds(event["dur"])))
        elif phase == "C":
            if not event["args"] or not all(
                isinstance(value, int | float) for value in event["args"].values()
            ):
                found.append(f"{where}: a counter's values")
        elif phase in ("s", "f"):
            if phase in flows[event["cat"], event["name"], event["id"]]:
                found.append(f"{where}: flow twice")
            flows[event["cat"], event["name"], event["id"]][phase] = event
        else:
            found.append(f"{where}: phase {phase}")
    for (pid, tid), spans in slices.items():
        found += [
            f"thread {tid}: {one} overlaps {two}"
            for one, two in pairwise(sorted(spans))
            if two[0] < one[1]
        ]
        if (
            tid < 2
            or (pid, tid) not in named["thread_name"]
            or (pid, tid) not in named["thread_sort_index"]
        ):
            found.append(f"thread {tid} has no name or order")
        if pid not in named["process_name"] or pid not in named["process_sort_index"]:
            found.append(f"process {pid} has no name or order")
    if len({tid for _, tid in slices}) != len(slices):
        found.append("threads of two processes have one number")
    return found + [fault for flow in flows.values() for fault in _of_a_flow(flow, slices)]


def _of_a_flow(
    flow: dict[str, dict[str, Any]], slices: dict[tuple[int, int], list[tuple[int, int]]]
) -> list[str]:
    if set(flow) != {"s", "f"}:
        return [f"a flow of {sorted(flow)}"]
    begin, end = flow["s"], flow["f"]
    found = []
    if begin["ts"] > end["ts"] or end.get("bp") != "e" or begin["pid"] == end["pid"]:
        found.append(f"flow {begin['id']} does not lead on")
    for event in (begin, end):
        at = nanoseconds(event["ts"])
        if not any(start <= at <= stop for start, stop in slices[event["pid"], event["tid"]]):
            found.append(f"flow {event['id']} is in no slice")
    return found
