"""Verdict of every field of every family whose weights are read, as the page docs/config-fields.md has them; ``python -m`` writes it."""

from __future__ import annotations

import inspect
import re
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from shardwright.model.families.dropout import FIELDS
from tests.execute.flips import Ending, Flip, Verdict, config_class, fields_of, flips, verdict
from tests.execute.huggingface_layouts import CONFIGS
from tests.execute.published_configs import PUBLISHED
from tests.execute.published_sizes import Config

PAGE = Path(__file__).parents[2] / "docs" / "config-fields.md"
HEAD = """# Fields of configurations

What every field of a family's configuration class does here, found by trying: a small model of Transformers {version} is made with another
value of the field, or without it. In training mode its loss and every gradient are compared with ours, on the same random weights (1e-5,
float64). Fields of a section stand behind its name.

- *Computed*: the loss or a gradient changes, and ours with it.
- *Without effect*: no value that was tried changes the loss or a gradient.
- *Left out*: dropout. Loss and gradients are equal without it; training here applies none, and `run` names what it leaves out.
- *Must be written*: without it the configuration is refused.
- *Refused*: some value is refused, with the reason that is said; other values of the same field may be computed.
- *Not taken*: Transformers itself takes no other value that was tried.

Models with experts are tried with the load-balancing loss (`output_router_logits`), and all with another `pad_token_id`.

`python -m tests.execute.field_verdicts` writes this page; tests repeat a sample of it, and `make proof` all.
"""
Found = dict[str, dict[str, set[str]]]
"""Verdict -> field -> reasons."""


@cache
def families() -> Mapping[str, Config]:
    """A small configuration of every architecture, without dropout and with the load-balancing loss of experts."""
    found: dict[str, Config] = {}
    for config in (*CONFIGS.values(), *PUBLISHED.values()):
        found.setdefault(config["architectures"][0], _trained(config))
    return found


def _trained(config: Config) -> Config:
    declared = inspect.signature(config_class(config)).parameters
    section = next((name for name in ("text_config",) if name in config), "")
    inner = inspect.signature(config_class(config[section])).parameters if section else declared
    dropped = {name: 0.0 for name in FIELDS if name in declared}
    balanced = {"output_router_logits": True} if "router_aux_loss_coef" in inner else {}
    if section:
        return {**config, **dropped, section: {**config[section], **balanced}}
    return {**config, **dropped, **balanced}


KINDS = ("computed", "without effect", "left out", "must be written", "refused", "not taken")
MISSING = re.compile(r"field [\w.]+ .*is missing$|field [\w.]+ is missing$")
STRONG = ("computed", "left out", "refused")
WEAKER = (*((kind, "without effect") for kind in STRONG), *((kind, "not taken") for kind in KINDS[:-1]))
"""A field with the first verdict does not have the second one too."""


def words_of(flip: Flip, found: Verdict, base: Verdict) -> tuple[str, str]:
    """(verdict, reason) of a flip, in the page's words."""
    if found.ending is Ending.REFUSED:
        return ("must be written", "") if flip.absent and MISSING.search(found.said) else ("refused", reason(found.said))
    if found.ending is Ending.UNMADE:
        return "not taken", ""
    if found.ending is Ending.LEFT_OUT:
        return "left out", ""
    assert found.ending is Ending.EQUAL, f"{flip}: {found.said}"
    return ("without effect" if found.same(base) else "computed"), ""


def reason(said: str) -> str:
    """What is said, without the values that it is said of."""
    short = re.sub(r"\b(mish|none|true|True)\b", "..", said)
    return re.sub(r"(?<![A-Za-z_\d])-?\d[\d.e+-]*", "..", short)


def of_family(config: Config) -> Found:
    """Every flip of a configuration."""
    found: Found = {}
    with TemporaryDirectory() as name:
        base = verdict(config, Path(name) / "base")
        assert base.ending is Ending.EQUAL, base.said
        for number, flip in enumerate(flips(config)):
            kind, why = words_of(flip, verdict(flip.of(config), Path(name) / str(number), like=base), base)
            rmtree(Path(name) / str(number), ignore_errors=True)
            found.setdefault(kind, {}).setdefault(flip.field, set()).update({why} - {""})
    for stronger, weaker in WEAKER:
        for field in found.get(stronger, {}):
            found.get(weaker, {}).pop(field, None)
    return found


def lines_of(architecture: str, found: Found) -> Iterator[str]:
    yield f"\n## {architecture}\n"
    for kind in KINDS:
        fields = found.get(kind)
        if fields:
            listed = [f"`{name}`" + (f" ({'; '.join(sorted(why))})" if why else "") for name, why in sorted(fields.items())]
            yield f"- {kind}: {', '.join(listed)}"


def page() -> str:
    import transformers

    text = [HEAD.format(version=transformers.__version__)]
    for architecture, config in sorted(families().items()):
        text += lines_of(architecture, of_family(config))
    return "\n".join(text) + "\n"


def listed() -> dict[str, dict[str, set[str]]]:
    """Architecture -> verdict -> fields, of the page."""
    found: dict[str, dict[str, set[str]]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        name, _, rest = part.partition("\n")
        found[name] = {kind: set(re.findall(r"`([\w.]+)`", said)) for kind, said in re.findall(r"^- ([a-z ]+): (.*)$", rest, re.MULTILINE)}
    return found


def all_fields(config: Config) -> set[str]:
    """Fields that the page must list."""
    return set(fields_of(config))


if __name__ == "__main__":
    told = "Try every field of every family, some minutes long, and write docs/config-fields.md anew."
    ArgumentParser(prog="python -m tests.execute.field_verdicts", description=told).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
