"""Documents as YAML: what a launcher reads, behind notes for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright.export.exporter import title
from shardwright.export.launchers.launcher import Launch


def to_yaml(launch: Launch, *notes: str, documents: Sequence[dict[str, Any]]) -> str:
    """Documents as YAML, behind notes: PyYAML's own quoting, with the lines of scripts as they are."""
    import yaml  # here, so that the command line's help does not pay for it

    class Dumper(yaml.SafeDumper):
        """Texts of several lines as blocks."""

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, block)
    head = "".join(f"# {note}\n" for note in (f"{title(launch.given)}. Made by Shardwright.", *notes))
    return head + yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=10**6)
