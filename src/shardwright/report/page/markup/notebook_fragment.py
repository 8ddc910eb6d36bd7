"""HTML fragment of one view for the output of a notebook's cell: styled by itself, no script."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from shardwright.report.page.markup.browser_files import browser_file
from shardwright.report.page.markup.view import View, append_view_content


def fragment_html(report_json: Any, view: View) -> str:
    """HTML fragment with styles for a notebook: chart, sentences and tables of a view, no question.

    The page's style of a view, nested in a class, takes its colours from the notebook's ink, so it
    suits light and dark themes. The fragment has no identifiers, since a notebook may show many.
    """
    fragment = Element("div", {"class": "shardwright"})
    own, shared = browser_file("notebook_fragment.css"), browser_file("view.css")
    SubElement(fragment, "style").text = f".shardwright {{\n{own}{shared}}}"
    append_view_content(fragment, report_json, view)
    text: str = tostring(fragment, encoding="unicode", method="html")
    return text
