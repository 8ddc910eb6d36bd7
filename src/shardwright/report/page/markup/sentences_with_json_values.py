"""Sentences of the page, whose numbers are values of the report's JSON.

A template such as ``A step takes {/answer/step_s:seconds}.`` becomes words and one HTML element for
each value, which names the value's pointer and format. Words themselves contain no digits. So each
number on the page can be compared with the JSON.
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.page.markup.number_formats import formatted
from shardwright.report.page.markup.value_at_json_pointer import value_at

_VALUE: Final = re.compile(r"\{(/[^:}]*|(?=:))(?::(\w+))?\}")
"""A pointer and a format; ``{:form}`` is a format of the whole document."""


def require_no_digits(words: str) -> str:
    """Return `words` unchanged; ValueError if they contain a digit.

    Raises:
        ValueError: the words contain a digit.
    """
    if any(letter.isdigit() for letter in words):
        raise ValueError(f"{words!r} has a digit; name the JSON value instead")
    return words


def value_element(
    parent: Element, report_json: Any, pointer: str, form: str = "text", *, tag: str = "span"
) -> Element:
    """Append an element with the JSON value at a pointer, in a number format; returns it."""
    attributes = {"data-leaf": pointer, "data-form": form}
    element = SubElement(parent, tag, attributes)
    element.text = formatted(value_at(report_json, pointer), form)
    return element


def append_words(parent: Element, words: str) -> None:
    """Append words without digits behind what the element already contains."""
    require_no_digits(words)
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + words
    else:
        parent.text = (parent.text or "") + words


def append_sentence(parent: Element, report_json: Any, template: str, *, tag: str = "span") -> None:
    """Append a sentence template with its JSON values filled in; ValueError for other digits.

    Raises:
        KeyError: the document lacks a value. ValueError: the words contain a digit.
    """
    end = 0
    for match in _VALUE.finditer(template):
        append_words(parent, template[end : match.start()])
        value_element(parent, report_json, match[1], match[2] or "text", tag=tag)
        end = match.end()
    append_words(parent, template[end:])


def sentence_text(report_json: Any, template: str) -> str:
    """Plain text of a sentence template with its JSON values filled in; other digits may stay."""
    return _VALUE.sub(
        lambda match: formatted(value_at(report_json, match[1]), match[2] or "text"), template
    )
