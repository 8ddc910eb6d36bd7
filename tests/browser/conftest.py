"""Headless Chromium for tests: a page that logs, fails or loads anything fails its test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMES = pytest.StashKey[dict[str, float]]()
INSIDE = ("data:", "blob:", "about:")
"""Beginnings of addresses that need no network."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{HERE}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where there is no browser all tests name this file, so that they become one line."""
    report = yield
    if call.when == "setup" and report.skipped and isinstance(report.longrepr, tuple):
        report.longrepr = (__file__, 0, report.longrepr[2])
    return report


def chromium_path() -> str | None:
    """The Chromium of this machine: that of the variable CHROMIUM, then the first on PATH."""
    if named := os.environ.get("CHROMIUM"):
        return named
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="module", autouse=True)
def chromium(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """The browser of a file's tests; without one they are skipped, and `make browser` ends.

    It ends with the file, since playwright's event loop would be in the way of other tests.
    """
    missing = ""
    if find_spec("playwright") is None:
        missing = "no playwright: pip install 'shardwright[browser]'"
    else:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            path = chromium_path() or playwright.chromium.executable_path
            if Path(path).exists():
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
                yield browser
                browser.close()
            else:
                missing = "no Chromium: install the package chromium, or set CHROMIUM=/path/to/it"
    if missing:
        if request.config.getoption("markexpr") == "browser":
            pytest.exit(missing, returncode=1)
        pytest.skip(missing)


@pytest.fixture(scope="session")
def report_time(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Function that has a time in milliseconds printed at the end; tests assert none."""
    return request.config.stash.setdefault(TIMES, {}).__setitem__


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for name, milliseconds in config.stash.get(TIMES, {}).items():
        terminalreporter.write_line(f"{milliseconds:7.0f} ms  {name}")


@dataclass
class Watched:
    """Messages of the console, errors and requests of the pages of a test."""

    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def require_nothing(self) -> None:
        assert self.console == [], "the console has messages"
        assert self.errors == [], "scripts raised errors"
        assert self.requests == [], "requests left the page"


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Records of all pages of the test, which must be empty at its end.

    A test that expects a message removes it from the list.
    """
    records = Watched()
    yield records
    records.require_nothing()


@pytest.fixture
def page_at(chromium: Browser, watched: Watched) -> Iterator[Callable[..., Page]]:
    """Function that opens an address, of which the page may load from its own server alone.

    Of a file it may load nothing else, or what begins with `allowed`.
    """
    contexts = []

    def open_page(
        url: str,
        *,
        allowed: str = "",
        width: int = 1200,
        height: int = 900,
        scheme: str = "light",
        javascript: bool = True,
    ) -> Page:
        settings: dict[str, Any] = {
            "viewport": {"width": width, "height": height},
            "color_scheme": scheme,
            "java_script_enabled": javascript,
        }
        context = chromium.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        server = url if url.startswith("file:") else "/".join(url.split("/")[:3]) + "/"
        own = allowed or server
        page.on("console", lambda message: watched.console.append(message.text))
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((own, *INSIDE))
                else watched.requests.append(request.url)
            ),
        )
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def page_of(page_at: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Function that opens the text of a page as a file: `page_of(html, width=360, scheme="dark",
    javascript=False)`."""

    def open_text(html: str, **settings: Any) -> Page:
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        return page_at(file.as_uri(), **settings)

    return open_text
