"""The parts of two layouts of a tensor on devices that exchange elements with one device."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.program.layout.tensor_layout import Box, Holding, Layout, intersection


def component(device: int, source: Layout, wanted: Layout) -> tuple[Layout, Layout] | None:
    """(source, wanted) parts of two layouts on devices that exchange with `device`; else None.

    Directly or through others; None if it neither needs nor gives anything.
    """
    if source == wanted:
        return None
    holdings: dict[int, list[Holding]] = {}
    for h in source:
        holdings.setdefault(h.device, []).append(h)
    wanted_by_device: dict[int, list[Holding]] = {}
    for w in wanted:
        if not _holds_wanted(w, holdings.get(w.device, [])):
            wanted_by_device.setdefault(w.device, []).append(w)
    if not wanted_by_device:
        return None
    offers = _by_samples(source)
    lacking = _by_samples(tuple(w for ws in wanted_by_device.values() for w in ws))
    reached, frontier = {device}, [device]
    while frontier:
        neighbours = {
            d
            for box in {
                w.box for other_device in frontier for w in wanted_by_device.get(other_device, ())
            }
            for d in _devices_that_overlap(box, offers)
        }
        neighbours |= {
            d
            for box in {h.box for other_device in frontier for h in holdings.get(other_device, ())}
            for d in _devices_that_overlap(box, lacking)
        }
        frontier = sorted(neighbours - reached)
        reached |= neighbours
    if len(reached) == 1:
        return None
    return tuple(h for h in source if h.device in reached), tuple(
        w for w in wanted if w.device in reached
    )


def _by_samples(layout: Layout) -> dict[Box, dict[Box, list[int]]]:
    """Devices of a layout, by the samples of their boxes and then by the whole box.

    Most pairs of devices differ in samples already.
    """
    devices_by_box: dict[Box, dict[Box, list[int]]] = {}
    for h in layout:
        devices_by_box.setdefault(h.box[:1], {}).setdefault(h.box, []).append(h.device)
    return devices_by_box


def _devices_that_overlap(box: Box, layout: dict[Box, dict[Box, list[int]]]) -> Iterator[int]:
    """Devices whose boxes share an element with `box`, some of them several times."""
    for samples, boxes in layout.items():
        if intersection(samples, box[:1]):
            for other_box, devices in boxes.items():
                if intersection(other_box, box):
                    yield from devices


def _holds_wanted(wanted: Holding, held: list[Holding]) -> bool:
    """True if one of the device's whole holdings contains the wanted box."""
    return any(
        h.part is None and (h.box == wanted.box or intersection(h.box, wanted.box) == wanted.box)
        for h in held
    )
