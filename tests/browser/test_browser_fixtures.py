"""The fixtures of the browser tests notice what a page may not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("script", "record"),
    [
        ("console.log('here')", "console"),
        ("undefinedFunction()", "errors"),
        ("new Image().src = 'http://127.0.0.1:9/picture.png'", "requests"),
    ],
)
def test_what_a_page_may_not_do_is_recorded(
    page_of: Callable[..., Any], watched: Any, script: str, record: str
) -> None:
    page = page_of(f"<!doctype html><title>t</title><p>text</p><script>{script}</script>")
    page.wait_for_load_state("load")
    page.wait_for_timeout(100)
    with pytest.raises(AssertionError):
        watched.require_nothing()
    assert getattr(watched, record)
    for records in (watched.console, watched.errors, watched.requests):
        records.clear()  # a failed request also logs


def test_a_page_without_faults_passes(page_of: Callable[..., Any]) -> None:
    page = page_of("<!doctype html><title>t</title><p>text</p>", width=360, scheme="dark")
    assert page.evaluate("innerWidth") == 360
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


def test_without_javascript_scripts_do_not_run(page_of: Callable[..., Any]) -> None:
    html = "<!doctype html><title>t</title><p>text</p><script>document.title = 'ran'</script>"
    assert page_of(html, javascript=False).title() == "t"
    assert page_of(html).title() == "ran"
