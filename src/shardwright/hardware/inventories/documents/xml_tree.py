"""XML parsed into elements with line numbers, within limits and without a DTD."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final
from xml.parsers import expat

from shardwright.errors import ClusterError
from shardwright.lazily_compiled_dataclass import dataclass

MAX_DEPTH: Final = 64
MAX_ELEMENTS: Final = 20_000
MAX_ATTRIBUTE: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """An XML element: name, attributes, child elements, and its first line."""

    name: str
    attributes: dict[str, str]
    line: int
    inside: list[Element] = field(default_factory=list)

    def get(self, attribute: str) -> str:
        """Value of an attribute without surrounding spaces; empty where the element has none."""
        return self.attributes.get(attribute, "").strip()


def parse_xml(text: str, *, name: str) -> Element:
    """Parse XML text into its root element; ClusterError if it is no XML or too large.

    At most 20,000 elements, 64 levels and 4,096 characters an attribute; no DTD.

    Raises:
        ClusterError: the text is no XML, exceeds a limit or has a DTD.
    """
    parser = expat.ParserCreate("utf-8")
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    open_elements: list[Element] = []
    roots: list[Element] = []
    count = 0

    def refuse_doctype(*_: Any) -> None:
        """Raise ClusterError at a document type, whose entities are not expanded."""
        raise ClusterError(
            f"{name}:{parser.CurrentLineNumber}: a document type",
            hint="entities are not expanded; take the DTD out",
        )

    def open_element(tag: str, attributes: dict[str, str]) -> None:
        """Append an element to the innermost open one; ClusterError above a limit."""
        nonlocal count
        count += 1
        where = f"{name}:{parser.CurrentLineNumber}"
        if count > MAX_ELEMENTS or len(open_elements) >= MAX_DEPTH:
            raise ClusterError(
                f"{where}: too many elements",
                hint=f"at most {MAX_ELEMENTS}, {MAX_DEPTH} levels deep",
            )
        if len(tag) > MAX_ATTRIBUTE or any(
            len(key) + len(value) > MAX_ATTRIBUTE for key, value in attributes.items()
        ):
            raise ClusterError(
                f"{where}: an attribute is too long", hint=f"at most {MAX_ATTRIBUTE} characters"
            )
        element = Element(name=tag, attributes=attributes, line=parser.CurrentLineNumber)
        (open_elements[-1].inside if open_elements else roots).append(element)
        open_elements.append(element)

    def close_element(_: str) -> None:
        """Close the innermost open element."""
        open_elements.pop()

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse_doctype
    parser.StartElementHandler, parser.EndElementHandler = open_element, close_element
    try:
        parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        raise ClusterError(
            f"{name}:{error.lineno}: {expat.ErrorString(error.code)}", hint="an XML file"
        ) from None
    except (ValueError, LookupError) as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(f"{name} is no XML text", hint="save it as UTF-8") from None
    return roots[0]
