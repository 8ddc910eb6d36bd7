"""YAML text of documents, with comments at the head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import yaml

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import one_line


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes texts of several lines as blocks."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """YAML scalar node of a text, in block style (``|``) if the text has several lines."""
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text_node)


def yaml_text(*documents: Mapping[str, object], comments: Iterable[str]) -> str:
    """YAML text of documents with their settings in order, behind comment lines."""
    head = "".join(f"# {one_line(line)}\n" for line in comments)
    plain = [dict(document) for document in documents]
    return head + yaml.dump_all(
        plain,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        width=10**6,
        allow_unicode=True,
    )
