"""Verdict of every field of every family whose weights are read, as the page docs/config-fields.md
has them.

``python -m tests.execute.field_verdicts`` tries all and writes the page; with names of
architectures, these alone. A family takes 5 to 30 seconds of a processor.
"""

from __future__ import annotations

import inspect
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import torch

from shardwright.model.families.fields.dropout import FIELDS
from tests.execute.flips import Ending, Flip, Verdict, config_class, fields_of, flips, verdict
from tests.execute.huggingface_layouts import CONFIGS
from tests.execute.published_configs import PUBLISHED
from tests.execute.published_sizes import Config

PAGE = Path(__file__).parents[2] / "docs" / "config-fields.md"
HEAD = """# Which fields of a `config.json` does the computed model follow?

For users who train a model of Transformers. This page is a reference: it lists, for each \
architecture, what each field of a `config.json` does here.

Each field was tried. A small model of Transformers {version} was made with another value of the \
field, and once without the field.
Its loss and every gradient, in training mode, were compared with those of this package on the \
same random weights, in float64
with a tolerance of 1e-5. A field of a nested section is written `section.field`.

- *Computed*: the field changes the loss or a gradient, and this package computes the same change.
- *Without effect*: no value that was tried changes the loss or a gradient.
- *Left out*: dropout. Training here applies no dropout, and `run` lists the dropout that it \
leaves out. Without dropout, loss and gradients are equal.
- *Must be written*: a configuration without the field is refused.
- *Refused*: at least one value is refused, for the reason in parentheses. Other values of the \
field may be computed. `..` in a reason stands for a value.
- *Not taken*: Transformers itself raises an error for every other value that was tried.

How the fields were tried:

- Models with experts ran with the load-balancing loss (`output_router_logits`).
- All models also ran with another `pad_token_id`.
- Some published `config.json` files have fields that the configuration class does not declare. \
These were tried with values of the type in the file.

Router biases (`e_score_correction_bias`) are weights and not fields, so they are not listed. \
Transformers never updates them. `run` updates them with
[--router-bias-update](running.md#biases-of-routers).

`python -m tests.execute.field_verdicts` writes this page; with names of architectures, it writes \
only their sections. Tests repeat a sample of the trials,
and `make proof` repeats all of them.
"""
_DEEPSEEK: Config = {"aux_loss_alpha": 0.25, "seq_aux": True, "ep_size": 1}
UNDECLARED: Mapping[str, Config] = {
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
}
"""By architecture, fields of its published files that its class does not declare: of DeepSeek's own
code."""
Found = dict[str, dict[str, set[str]]]
"""Verdict -> field -> reasons."""


def architectures() -> list[str]:
    """Of `families`, without loading Transformers."""
    return sorted(
        {config["architectures"][0] for config in (*CONFIGS.values(), *PUBLISHED.values())}
    )


@cache
def families() -> Mapping[str, Config]:
    """A small configuration of every architecture, without dropout, with the load-balancing loss of
    experts and with `UNDECLARED`."""
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
    return {**config, **dropped, **balanced, **UNDECLARED.get(config["architectures"][0], {})}


KINDS = ("computed", "without effect", "left out", "must be written", "refused", "not taken")
MISSING = re.compile(r"field [\w.]+ .*is missing$|field [\w.]+ is missing$")
STRONG = ("computed", "left out", "refused")
WEAKER = (
    *((kind, "without effect") for kind in STRONG),
    *((kind, "not taken") for kind in KINDS[:-1]),
)
"""A field with the first verdict does not have the second one too."""


def words_of(flip: Flip, found: Verdict, base: Verdict) -> tuple[str, str]:
    """(verdict, reason) of a flip, in the page's words."""
    if found.ending is Ending.REFUSED:
        return (
            ("must be written", "")
            if flip.absent and MISSING.search(found.said)
            else ("refused", reason(found.said))
        )
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
            kind, why = words_of(
                flip, verdict(flip.of(config), Path(name) / str(number), like=base), base
            )
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
            listed = [
                f"`{name}`" + (f" ({'; '.join(sorted(why))})" if why else "")
                for name, why in sorted(fields.items())
            ]
            yield f"- {kind}: {', '.join(listed)}"


def section_of(architecture: str) -> str:
    """What the page says of a family, all of whose fields are tried."""
    torch.set_num_threads(1)  # tensors are small: threads would wait for each other
    return "\n".join(lines_of(architecture, of_family(families()[architecture]))).partition("\n\n")[
        2
    ]


def sections() -> dict[str, str]:
    """What the page says of each family now."""
    parts = (part.partition("\n") for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:])
    return {name: text.strip() for name, _, text in parts}


def written(found: Mapping[str, str]) -> None:
    """Write the page with sections in the place of those that it has of the same families."""
    import transformers

    every = {
        name: text for name, text in sorted({**sections(), **found}.items()) if name in families()
    }
    body = "\n\n".join(f"## {name}\n\n{text}" for name, text in every.items())
    PAGE.write_text(
        f"{HEAD.format(version=transformers.__version__)}\n\n{body}\n", encoding="utf-8"
    )


def listed() -> dict[str, dict[str, set[str]]]:
    """Architecture -> verdict -> fields, of the page."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, text in sections().items():
        found[name] = {
            kind: set(re.findall(r"`([\w.]+)`", said))
            for kind, said in re.findall(r"^- ([a-z ]+): (.*)$", text, re.MULTILINE)
        }
    return found


def all_fields(config: Config) -> set[str]:
    """Fields that the page must list."""
    return set(fields_of(config))


if __name__ == "__main__":
    told = (
        "Try every field of families, and write their sections of docs/config-fields.md, each as"
        " soon as it is known."
    )
    parser = ArgumentParser(prog="python -m tests.execute.field_verdicts", description=told)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help="by default all")
    parser.add_argument("--processes", type=int, default=1, help="families at a time")
    arguments = parser.parse_args()
    asked = arguments.architectures or sorted(families())
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        for name, text in zip(asked, pool.map(section_of, asked), strict=True):
            written({name: text})
            sys.stderr.write(f"{name}\n")
