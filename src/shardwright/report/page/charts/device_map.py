"""Map of the cluster's nodes as static SVG, in which the groups of one device have colours."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.charts.series_legend import append_legend
from shardwright.report.page.markup.sentences_with_json_values import append_sentence
from shardwright.report.page.markup.series_swatch import series_class
from shardwright.report.page.markup.value_at_json_pointer import value_at

_MOST_DEVICE_CELLS: Final = 1024
"""Most devices that have a cell each; of a larger cluster each node has a cell."""
_MOST_NODES: Final = 16_384
"""Most nodes that the picture shows."""
_COLUMNS: Final = ((64, 16), (512, 32), (4096, 64))
"""(most cells, cells of a line)."""
_OTHERS: Final = "map-other"
_SELF: Final = "map-self"


def append_device_map(parent: Element, report_json: Any, pointer: str, *, description: str) -> None:
    """Append an SVG map of devices; its data (`view_data_types.communication_groups`) at a pointer.

    A cell is a device, or a node of a large cluster. It has the colour of the first kind of
    communication by which the shown device sends to it. The script ``device_map.js`` replaces the
    picture with one in which any device can be chosen.

    Args:
        description: words for readers that do not see the chart.
    """
    groups = value_at(report_json, pointer)
    figure = SubElement(parent, "figure", {"data-chart": "devices", "data-source": pointer})
    cells = _cell_classes(groups)
    columns = next((columns for most, columns in _COLUMNS if len(cells) <= most), 128)
    lines = -(-len(cells) // columns)
    svg = SubElement(
        figure,
        "svg",
        {
            "class": "device-map",
            "viewBox": f"0 0 {10 * columns} {10 * lines}",
            "role": "img",
            "aria-label": description,
        },
    )
    for name, path in _paths(cells, columns).items():
        SubElement(svg, "path", {"class": name, "d": path})
    gaps = "".join(f"M{10 * column - 0.5:g} 0v{10 * lines}" for column in range(1, columns))
    SubElement(svg, "path", {"class": "map-gap", "d": gaps})
    kinds = range(len(groups["kinds"]))
    append_legend(figure, report_json, [f"{pointer}/kinds/{kind}" for kind in kinds])
    note = SubElement(figure[-1], "span", {"class": "legend-entry map-note"})
    shown = f"{pointer}/classes/{groups['shown']}"
    what = "a device" if _has_device_cells(groups) else "a node"
    append_sentence(
        note,
        report_json,
        f"Each square is {what}, in the order of device numbers. Colours: the groups of device"
        f" {{{shown}/devices/first}}, {{{shown}/stage}}.",
    )


def _has_device_cells(groups_json: Any) -> bool:
    """True if each device has a cell on the map; else each node has one."""
    return bool(groups_json["devices"] <= _MOST_DEVICE_CELLS)


def _cell_classes(groups_json: Any) -> list[str]:
    """Style class of each cell (device or node): the kind by which the shown device sends to it."""
    cell_of, count = _cells(groups_json)
    classes = [_OTHERS] * min(count, _MOST_NODES)
    own = [
        group for group in groups_json["groups"] if group["device_class"] == groups_json["shown"]
    ]
    for group in sorted(own, key=lambda group: (-group["kind"], -group["size"])):
        for device in pattern_devices(group["group"]):
            cell = cell_of(device)
            if cell < len(classes):
                classes[cell] = series_class(group["kind"])
    first = cell_of(groups_json["classes"][groups_json["shown"]]["devices"]["first"])
    if first < len(classes):
        classes[first] = _SELF
    return classes


def _cells(groups_json: Any) -> tuple[Any, int]:
    """(function from a device to the number of its map cell, number of cells)."""
    if _has_device_cells(groups_json):
        return (lambda device: device), groups_json["devices"]
    runs = groups_json["nodes"]
    starts = [sum(run["count"] for run in runs[:place]) for place in range(len(runs))]

    def node_of(device: int) -> int:
        """Index of the node that holds a device, counted over all runs of equal nodes."""
        place = max(number for number, run in enumerate(runs) if run["first"] <= device)
        return int(starts[place] + (device - runs[place]["first"]) // runs[place]["devices"])

    return node_of, sum(run["count"] for run in runs)


def pattern_devices(pattern_json: Any) -> list[int]:
    """Devices of a `DevicePattern` of the JSON."""
    if pattern_json["offsets"]:
        return [
            pattern_json["first"] + int(offset) for offset in pattern_json["offsets"].split(",")
        ]
    devices = [pattern_json["first"]]
    for count, step in pattern_json["levels"]:
        devices = [device + place * step for device in devices for place in range(count)]
    return devices


def _paths(cells: list[str], columns: int) -> dict[str, str]:
    """SVG path data by style class; `cells`: each cell's class by row; equal neighbours merged."""
    parts: dict[str, list[str]] = {}
    place = 0
    for line in range(0, len(cells), columns):
        top = 10 * line // columns
        for name, run in groupby(cells[line : line + columns]):
            width = len(list(run))
            left = 10 * (place % columns)
            parts.setdefault(name, []).append(f"M{left} {top}h{10 * width - 1}v9H{left}z")
            place += width
    return {name: "".join(texts) for name, texts in sorted(parts.items())}
