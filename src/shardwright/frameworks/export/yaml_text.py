"""Documents as YAML, behind comments for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import yaml

from shardwright.frameworks.export.exporter import one_line


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _block)


def yaml_text(*documents: Mapping[str, object], comments: Iterable[str]) -> str:
    """Documents as YAML, their settings in their order, behind lines of comment."""
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
