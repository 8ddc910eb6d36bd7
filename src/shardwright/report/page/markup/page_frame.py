"""The page: its views in order inside one self-contained HTML file with style sheet and scripts.

The file loads nothing from elsewhere, and a content security policy forbids it. Without JavaScript
all views can be read. The JSON of the report is part of the page, compressed with DEFLATE; scripts
draw interactive charts from it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from shardwright.files.canonical_json import to_compact_text
from shardwright.report.page.markup.browser_files import browser_file
from shardwright.report.page.markup.sentences_with_json_values import append_sentence, value_element
from shardwright.report.page.markup.view import View, append_view

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)
"""Content security policy: inline styles and scripts alone, no request."""
STYLES: Final = ("uPlot.min.css", "view.css", "report.css")
"""Style sheets of `report.page.browser` that the page embeds, in order."""


def page_html(report_json: Any, views: Sequence[View], *, scripts: Sequence[str]) -> str:
    """HTML page of a report, as text: its views, styles, scripts and JSON document.

    Args:
        report_json: the report's JSON document.
        views: in the order of the page.
        scripts: files of `report.page.browser` that the page embeds, in order.
    """
    html = Element("html", {"lang": "en"})
    head = SubElement(html, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"})
    SubElement(head, "title").text = report_json["title"]
    SubElement(head, "style").text = "\n".join(browser_file(name) for name in STYLES)
    body = SubElement(html, "body")
    header = SubElement(body, "header")
    value_element(SubElement(header, "h1"), report_json, "/title")
    main = SubElement(body, "main")
    for view in views:
        append_view(main, report_json, view)
    _append_footer(body, report_json)
    SubElement(
        body, "script", {"type": "application/json+deflate", "id": "document"}
    ).text = _compressed(report_json)
    if scripts:
        code = "\n".join(browser_file(name) for name in scripts)
        SubElement(body, "script").text = f"(() => {{\n{code}\n}})();"
    text: str = tostring(html, encoding="unicode", method="html")
    return f"<!doctype html>\n{text}\n"


def _append_footer(body: Element, report_json: Any) -> None:
    """Append the footer from the JSON: version, command of the page, any for what-if views."""
    footer = SubElement(body, "footer")
    append_sentence(
        SubElement(footer, "p"), report_json, "Made by shardwright {/version} with the command"
    )
    value_element(SubElement(SubElement(footer, "pre"), "code"), report_json, "/command")
    if report_json.get("what_if_command"):
        words = "This command adds the best plans of changed requests, with sliders:"
        append_sentence(SubElement(footer, "p"), report_json, words)
        value_element(
            SubElement(SubElement(footer, "pre"), "code"), report_json, "/what_if_command"
        )


def _compressed(report_json: Any) -> str:
    """The JSON text, compressed with raw DEFLATE (RFC 1951), in base 64."""
    compressor = zlib.compressobj(level=9, wbits=-zlib.MAX_WBITS)
    data = compressor.compress(to_compact_text(report_json).encode()) + compressor.flush()
    return base64.b64encode(data).decode()
