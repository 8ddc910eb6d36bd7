"""The timeline and the map of devices in Chromium: zoom, drag, hover and keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.report.page.charts.device_map import pattern_devices
from shardwright.report.page.report_page import report_html
from tests.report.page.report_documents import simulated_document

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

FILE = "pipeline"
ZOOMS = 40
WHEEL = """async ([turns, share]) => {
  const canvas = document.querySelector("#timeline canvas"), box = canvas.getBoundingClientRect();
  const frames = Number(canvas.dataset.frames);
  for (let turn = 0; turn < turns; turn += 1) {
    canvas.dispatchEvent(new WheelEvent("wheel", {
      deltaY: -40, clientX: box.left + 64 + share * (box.width - 64), clientY: box.top + 10,
      bubbles: true, cancelable: true,
    }));
    await new Promise(requestAnimationFrame);
  }
  await new Promise(requestAnimationFrame);
  return Number(canvas.dataset.frames) - frames;
}"""


@cache
def page_text(name: str = FILE) -> str:
    return report_html(simulated_document(name))


def large_document(rows: int) -> Any:
    """The document with the timeline's rows repeated, until there are about 100,000 spans."""
    document = simulated_document(FILE)
    timeline = document["timeline"]
    return document | {"timeline": timeline | {"rows": (timeline["rows"] * rows)[:rows]}}


def spans_of(document: Any) -> int:
    return sum(
        track["gaps"].count(",") + 1
        for row in document["timeline"]["rows"]
        for track in row["tracks"]
    )


def timeline_of(page: Page) -> Locator:
    """The canvas of the timeline, once it is drawn."""
    canvas = page.locator("#timeline canvas[data-frames]")
    canvas.wait_for()
    return canvas


def view_of(canvas: Locator) -> tuple[float, float]:
    """First and last tick that the timeline shows, after what has been asked of it is drawn."""
    canvas.page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    low, high = (canvas.get_attribute("data-view") or "").split()
    return float(low), float(high)


def test_the_picture_is_there_at_once(page_of: Callable[..., Page]) -> None:
    """The static picture needs no script, and the canvas takes its place in its size."""
    static = page_of(page_text(), javascript=False).locator("#timeline svg.plot path")
    assert static.count() > 2
    page = page_of(page_text())
    canvas = timeline_of(page)
    assert page.locator("#timeline svg").count() == 0
    box = canvas.bounding_box()
    assert box is not None
    assert box["width"] > 600


def test_one_frame_is_drawn_for_each_zoom(page_of: Callable[..., Page]) -> None:
    page = page_of(page_text())
    canvas = timeline_of(page)
    before = view_of(canvas)
    assert page.evaluate(WHEEL, [ZOOMS, 0.3]) == ZOOMS
    low, high = view_of(canvas)
    assert high - low < (before[1] - before[0]) / 100
    middle = before[0] + 0.3 * (before[1] - before[0])
    assert low <= middle <= high


def test_a_frame_of_many_spans_has_few_rectangles(page_of: Callable[..., Page]) -> None:
    """At most a rectangle for each pixel of a lane, however many spans there are."""
    document = large_document(rows=180)
    spans = spans_of(document)
    assert spans > 100_000
    page = page_of(report_html(document), width=1000)
    canvas = timeline_of(page)
    pixels = float(canvas.evaluate("(canvas) => canvas.clientWidth")) - 64
    lanes = 4 * len(document["timeline"]["rows"])
    for _ in range(6):
        rectangles = int(canvas.get_attribute("data-rectangles") or "0")
        assert 0 < rectangles <= lanes * pixels
        page.evaluate(WHEEL, [6, 0.5])


def test_keys_zoom_move_and_read_spans(page_of: Callable[..., Page]) -> None:
    page = page_of(page_text())
    canvas = timeline_of(page)
    whole = view_of(canvas)
    canvas.focus()
    page.keyboard.press("+")
    low, high = view_of(canvas)
    assert high - low == pytest.approx((whole[1] - whole[0]) / 2)
    page.keyboard.press("ArrowRight")
    assert view_of(canvas)[0] == pytest.approx(low + 0.2 * (high - low))
    page.keyboard.press("0")
    assert view_of(canvas) == whole
    status = page.locator("#timeline .chart-status")
    page.keyboard.press("n")
    first = status.inner_text()
    assert first.startswith("forward, chunk 0, microbatch 0\nstage 0, device 0")
    page.keyboard.press("n")
    assert "microbatch 1" in status.inner_text()
    page.keyboard.press("ArrowDown")
    assert "stage 1" in status.inner_text()
    page.keyboard.press("p")
    page.keyboard.press("p")
    assert "before: warm-up" in status.inner_text()
    page.keyboard.press("m")
    low, high = view_of(canvas)
    assert high - low < 0.5 * (whole[1] - whole[0])


def test_the_pointer_names_what_is_under_it(page_of: Callable[..., Page]) -> None:
    page = page_of(page_text())
    canvas = timeline_of(page)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 66, box["y"] + 10)
    tip = page.locator("#timeline .chart-tip")
    assert "stage 0, device 0" in tip.inner_text()
    # The last stage waits for its first forward, below the rows of the others.
    rows = len(simulated_document(FILE)["timeline"]["rows"])
    page.mouse.move(box["x"] + 66, box["y"] + 4 + (rows - 1) * 38 + 10)
    assert tip.inner_text().startswith("waits: ")
    page.mouse.move(box["x"] + 66, box["y"] - 40)
    assert not tip.is_visible()


def test_dragging_moves_the_timeline(page_of: Callable[..., Page]) -> None:
    page = page_of(page_text())
    canvas = timeline_of(page)
    page.get_by_role("button", name="Zoom in").click()
    low, high = view_of(canvas)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 500, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 10)
    page.mouse.up()
    moved = 200 / (box["width"] - 64) * (high - low)
    assert view_of(canvas) == pytest.approx((low + moved, high + moved))
    page.get_by_role("button", name="Whole step").click()
    assert view_of(canvas)[0] == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_charts_fit_the_page(page_of: Callable[..., Page], width: int, scheme: str) -> None:
    page = page_of(page_text(), width=width, scheme=scheme)
    timeline_of(page)
    page.locator("#communication canvas[data-device]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["pipeline", "experts", "no pipeline"])
def test_the_map_marks_the_groups_of_any_device(page_of: Callable[..., Page], name: str) -> None:
    communication = simulated_document(name)["communication"]
    page = page_of(page_text(name))
    canvas = page.locator("#communication canvas[data-device]")
    canvas.wait_for()
    picker = page.get_by_label("Device", exact=True)
    for number, device_class in enumerate(communication["classes"]):
        first = device_class["devices"]["first"]
        picker.select_option(str(first))
        expected = {first}
        for group in communication["groups"]:
            if group["device_class"] == number:
                expected.update(pattern_devices(group["group"]))
        assert marked_devices(canvas, first) == expected
        # The next device has groups of the same sizes, which contain it.
        page.get_by_role("button", name="Next device").click()
        assert len(marked_devices(canvas, first + 1)) == len(expected)
        assert first + 1 in marked_devices(canvas, first + 1)


def marked_devices(canvas: Locator, device: int) -> set[int]:
    """Devices that the map marks once it shows the groups of a device."""
    canvas.page.wait_for_selector(f'#communication canvas[data-device="{device}"]')
    return set(map(int, (canvas.get_attribute("data-marked") or "").split()))


def test_arrow_keys_choose_devices_and_the_text_names_their_groups(
    page_of: Callable[..., Page],
) -> None:
    page = page_of(page_text())
    canvas = page.locator("#communication canvas[data-device]")
    canvas.wait_for()
    page.get_by_label("Device", exact=True).select_option("0")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert 1 in marked_devices(canvas, 1)
    status = page.locator("#communication .chart-status").inner_text()
    assert status.startswith("device 1, stage 0\ntensor parallelism: 2 devices")


def test_a_device_without_groups_is_said_to_send_nothing(page_of: Callable[..., Page]) -> None:
    page = page_of(page_text("one device that does not fit"))
    timeline_of(page)
    assert page.locator("#communication canvas").count() == 0
    assert "No device sends anything" in page.locator("#communication .reading").inner_text()


def test_steps_of_many_ticks_look_the_same(page_of: Callable[..., Page]) -> None:
    """Gaps of more ticks than an integer of 32 bits has."""

    def scaled(text: str) -> str:
        return ",".join(str(100 * int(number)) for number in text.split(","))

    document = simulated_document(FILE)
    timeline = document["timeline"]
    rows = [
        row
        | {
            "tracks": [
                track | {"gaps": scaled(track["gaps"]), "lengths": scaled(track["lengths"])}
                for track in row["tracks"]
            ]
        }
        for row in timeline["rows"]
    ]
    long = document | {"timeline": timeline | {"rows": rows, "tick_s": timeline["tick_s"] / 100}}
    assert any(int(gap) > 2**31 for row in rows for gap in row["tracks"][-1]["gaps"].split(","))
    drawn = []
    for one in (document, long):
        canvas = timeline_of(page_of(report_html(one)))
        drawn.append(canvas.get_attribute("data-rectangles"))
    assert drawn[0] == drawn[1]
