"""The report in a browser: readable in every width, colour scheme and medium, by everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.report.page.report_of_size import SIZES, report_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS = (360, 1600)
SCHEMES = ("light", "dark")

SHOWN_NUMBERS = """() => {
  const shown = (element) => element.checkVisibility({visibilityProperty: true});
  const pointer = (cell) => {
    const table = cell.closest('table');
    const head = table.querySelectorAll('th[data-form]')[cell.cellIndex].dataset;
    const row = cell.parentElement.rowIndex - table.tHead.rows.length;
    return head.values ? `${head.values}/${row}` : `${table.dataset.rows}/${row}/${head.field}`;
  };
  const values = [...document.querySelectorAll('[data-leaf]')]
    .filter((element) => !element.closest('figure[data-chart]') && shown(element))
    .map((element) => [element.dataset.leaf, element.textContent]);
  const cells = [...document.querySelectorAll('table:has(th[data-form]) td')]
    .filter(shown).map((cell) => [pointer(cell), cell.textContent]);
  return values.concat(cells);
}"""
"""Pointer and text of each number that a reader sees, but for those inside interactive charts."""

OPEN_ALL = (
    "() => document.querySelectorAll('details').forEach((details) => { details.open = true; })"
)

TOO_WIDE = """() => {
  const scrolls = (element) => {
    for (let at = element.parentElement; at; at = at.parentElement)
      if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const width = document.documentElement.clientWidth;
  return [...document.querySelectorAll('body *')]
    .filter((element) => element.checkVisibility() && !element.closest('svg'))
    .filter((element) => element.getBoundingClientRect().right > width + 1 && !scrolls(element))
    .map((element) => `${element.tagName} ${element.className}: ${element.textContent}`);
}"""
"""Elements that end to the right of the window and do not scroll by themselves."""

BAD_LABELS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg:not(svg svg)')) {
    const cuts = getComputedStyle(svg).overflow !== 'visible';
    const frame = (cuts ? svg : svg.closest('figure') ?? svg).getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    boxes.forEach((box, at) => {
      const words = `${svg.getAttribute('aria-label')}: ${texts[at].textContent}`;
      if (box.left < frame.left - 1 || box.right > frame.right + 1
          || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) found.push(`cut: ${words}`);
      for (let other = 0; other < at; other++) {
        const next = boxes[other];
        const across = Math.min(box.right, next.right) - Math.max(box.left, next.left);
        const down = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
        if (across > 1 && down > 3)
          found.push(`overlap: ${words} and ${texts[other].textContent}`);
      }
    });
  }
  return found;
}"""
"""Labels of pictures that are cut off or stand on each other."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All sizes of plan in `make browser`, the small one in `make test`."""
    if "html" in metafunc.fixturenames:
        every = metafunc.config.getoption("markexpr") == "browser"
        metafunc.parametrize("html", SIZES if every else ["small"], indirect=True)


@pytest.fixture
def html(request: pytest.FixtureRequest) -> str:
    return report_of(request.param)[1]


def settled(page: Page) -> Page:
    """The page after its scripts have drawn."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(300)
    return page


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing(
    page_of: Callable[..., Page], html: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = settled(page_of(html, width=width, scheme=scheme))
    page.evaluate(OPEN_ALL)
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(
    page_of: Callable[..., Page], html: str, width: int, javascript: bool
) -> None:
    page = settled(page_of(html, width=width, javascript=javascript))
    page.evaluate(OPEN_ALL)
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_labels_are_neither_cut_off_nor_on_each_other(
    page_of: Callable[..., Page], html: str, width: int, javascript: bool
) -> None:
    page = settled(page_of(html, width=width, javascript=javascript))
    assert page.evaluate(BAD_LABELS) == []


def test_print_and_no_javascript_show_the_same_numbers(
    page_of: Callable[..., Page], html: str
) -> None:
    """Tables that are closed on the screen are printed, and can be opened without scripts."""
    html = html.replace('<details open="">', "<details>")
    page = settled(page_of(html))
    closed = page.evaluate(SHOWN_NUMBERS)
    page.evaluate(OPEN_ALL)
    numbers = page.evaluate(SHOWN_NUMBERS)
    assert 20 < len(closed) < len(numbers)
    plain = settled(page_of(html, javascript=False))
    plain.evaluate(OPEN_ALL)
    assert plain.evaluate(SHOWN_NUMBERS) == numbers
    for javascript in (True, False):
        printed = settled(page_of(html, javascript=javascript))
        printed.emulate_media(media="print")
        assert printed.evaluate(SHOWN_NUMBERS) == numbers


def test_pictures_are_there_without_scripts(page_of: Callable[..., Page], html: str) -> None:
    """The first picture waits for no script."""
    page = page_of(html, javascript=False)
    boxes = page.evaluate(
        "() => [...document.querySelectorAll('section svg:not(svg svg)')].map((svg) => {"
        " const box = svg.getBoundingClientRect(); return [box.width, box.height]; })"
    )
    assert boxes
    assert all(width > 100 and height > 10 for width, height in boxes)


def test_first_picture(
    page_of: Callable[..., Page], html: str, report_time: Callable[[str, float], None], request: Any
) -> None:
    """The page is painted before any script has run for long; its time is printed, not asserted."""
    page = settled(page_of(html))
    [paint] = page.evaluate(
        "() => performance.getEntriesByName('first-contentful-paint').map((e) => e.startTime)"
    )
    report_time(f"first picture, {request.node.callspec.params['html']} plan", paint)
    assert paint > 0


WITHOUT_ZOOM = ("devices", "scatter")
"""Charts that show all that they have at once."""

PICTURE = "(figure) => [...figure.querySelectorAll('canvas')].map((c) => c.toDataURL()).join()"

TURNS = """async (figure) => {
  const target = figure.querySelector('canvas') ?? figure;
  const box = target.getBoundingClientRect();
  const times = [];
  for (let turn = 0; turn < 30; turn++) {
    target.dispatchEvent(new WheelEvent('wheel', {deltaY: -60, bubbles: true, cancelable: true,
      clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}));
    times.push(await new Promise(requestAnimationFrame));
  }
  return (times[29] - times[0]) / 29;
}"""
"""Milliseconds between frames in which the wheel is turned by a notch each."""


def test_zoom(
    page_of: Callable[..., Page], html: str, report_time: Callable[[str, float], None], request: Any
) -> None:
    """The wheel, or dragging over a part, draws a chart again; the time of a frame is printed."""
    page = settled(page_of(html))
    size = request.node.callspec.params["html"]
    for figure in page.query_selector_all("figure[data-chart]"):
        name = figure.get_attribute("data-chart")
        figure.scroll_into_view_if_needed()
        before = page.evaluate(PICTURE, figure)
        assert before, f"{name} has no canvas"
        report_time(f"frame while zooming {name}, {size} plan", page.evaluate(TURNS, figure))
        if page.evaluate(PICTURE, figure) == before and name not in WITHOUT_ZOOM:
            over = figure.query_selector("canvas")
            box = over.bounding_box() if over else None
            assert box is not None
            middle = box["y"] + box["height"] / 2
            page.mouse.move(box["x"] + 0.4 * box["width"], middle)
            page.mouse.down()
            page.mouse.move(box["x"] + 0.6 * box["width"], middle + 10, steps=4)
            page.mouse.up()
            page.wait_for_timeout(100)
            assert page.evaluate(PICTURE, figure) != before, f"{name} does not zoom"
