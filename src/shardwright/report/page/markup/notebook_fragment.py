"""HTML fragment of one view for the output of a notebook's cell: styled by itself, no script."""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from shardwright.report.page.markup.view import View, append_view_content


def fragment_html(document: Any, view: View) -> str:
    """HTML text of a view, without its question.

    Its style takes ink and background from the notebook, so it suits light and dark themes. It has
    no identifiers, since a notebook may show many fragments.
    """
    fragment = Element("div", {"class": "shardwright"})
    style = files("shardwright.report.page.browser").joinpath("notebook_fragment.css")
    SubElement(fragment, "style").text = style.read_text(encoding="utf-8")
    append_view_content(fragment, document, view)
    text: str = tostring(fragment, encoding="unicode", method="html")
    return text
