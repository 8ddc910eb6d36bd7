"""Write docs/guide: decision tables, and a page for each case with its guides.

    python tools/guide_pages.py             all pages
    python tools/guide_pages.py dense-8b    one case's page

Every number is of `make_guide` and `make_serving_guide`. A test compares a page with what this
program writes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwright.api.guide.make_guide import guide_document, make_guide
from shardwright.api.guide.make_serving_guide_of_request import make_serving_guide
from shardwright.report.guide.guide_markdown_page import (
    guide_markdown,
    table,
)
from shardwright.report.guide.guide_pictures import guide_pictures, picture_file
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Guide,
    Rule,
)
from shardwright.search.search_request import Request
from shardwright.units import format_percent

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "guide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case: its training request, and cluster, tokens, answer and load of its serving, if any."""

    title: str
    request: Request
    served: tuple[str, int, int, int] | None


def outcome_cell(rule: Rule | None) -> str:
    """Short outcome of a rule for a table of many guides; empty where it does not apply."""
    if rule is None or rule.verdict is None:
        return ""
    if rule.verdict.loss is None:
        return rule.verdict.outcome.value
    if rule.verdict.outcome.value == "holds":
        return "holds"
    return f"{rule.verdict.outcome.value} {format_percent(abs(rule.verdict.loss))}"


def _request(model: str, cluster: str, length: int, batch: int, *, images: int = 0) -> Request:
    return Request(
        model=model, cluster=cluster, seq_len=length, global_batch=batch, image_tokens=images
    )


CASES: Final = {
    "dense-8b": Case(
        title="Dense, 8B",
        request=_request("llama-3.1-8b", "h100-sxm:64", 8192, 256),
        served=("h100-sxm:8", 4608, 512, 64),
    ),
    "dense-70b": Case(
        title="Dense, 70B",
        request=_request("llama-3.1-70b", "a100-sxm-80gb:256", 4096, 1024),
        served=("a100-sxm-80gb:8", 4608, 512, 64),
    ),
    "dense-405b": Case(
        title="Dense, 405B",
        request=_request("llama-3.1-405b", "h100-sxm:16384", 8192, 2048),
        served=("h200-sxm:16", 4608, 512, 64),
    ),
    "experts": Case(
        title="Experts",
        request=_request("mixtral-8x7b", "mi300x:64", 4096, 512),
        served=("mi300x:8", 4608, 512, 64),
    ),
    "latent-attention": Case(
        title="Experts and latent attention",
        request=_request("deepseek-v3", "gb200:256", 4096, 2048),
        served=("gb200:16", 4608, 512, 256),
    ),
    "long-context": Case(
        title="Long context",
        request=_request("qwen3-8b", "gb200:72", 131072, 72),
        served=("gb200:8", 131072, 1024, 16),
    ),
    "hybrid": Case(
        title="Hybrid of attention and Mamba",
        request=_request("jamba-v0.1", "h200-sxm:64", 8192, 256),
        served=("h200-sxm:8", 4608, 512, 64),
    ),
    "multimodal": Case(
        title="Text and images",
        request=_request("llava-1.5-7b", "tpu-v5p:64", 2048, 512, images=576),
        served=None,
    ),
}
"""The cases of the pages, by the name of their file."""
NOT_SERVED: Final = (
    "Serving is not shown: only decoders of text alone are simulated, and here the model reads"
    " images too.\n"
)


def case_guides(name: str) -> tuple[Guide, Guide | None]:
    """The training guide of a case, and its serving guide or None."""
    case = CASES[name]
    training = make_guide(case.request)
    if case.served is None:
        return training, None
    cluster, tokens, answer, load = case.served
    request = Request(model=case.request.model, cluster=cluster, seq_len=tokens, global_batch=load)
    return training, make_serving_guide(request, answer=answer)


def case_page(name: str, training: Guide, serving: Guide | None) -> str:
    """Markdown of a case: training, then serving."""
    parts = [
        f"# {CASES[name].title}: which rules hold?\n",
        "For people who plan such a model. `make guide` writes this page; how to read it is in the"
        " [guide](../guide.md).\n",
        f"## Training\n\n{guide_markdown(training, level=3, pictures=f'pictures/{name}-training')}",
        "## Serving\n",
        NOT_SERVED
        if serving is None
        else guide_markdown(serving, level=3, pictures=f"pictures/{name}-serving"),
    ]
    return "\n".join(parts)


def case_pictures(name: str, training: Guide, serving: Guide | None) -> dict[str, str]:
    """SVG text of each picture of a case, by the name of its file."""
    return {
        f"{name}-{guide.kind}-{picture.name}.svg": picture_file(picture, document)
        for guide in (training, serving)
        if guide is not None
        for document in [guide_document(guide)]
        for picture in guide_pictures(document)
    }


def decision_tables(guides: dict[str, tuple[Guide, Guide | None]]) -> str:
    """Markdown of the tables of all cases: best plans, and outcomes of every rule."""
    names = list(guides)
    parts = [
        "# Which rules of thumb hold, for which case?\n",
        "For people who look for a rule. A cell says whether the best plan that follows the rule is"
        " as fast as the best plan, or how much longer its step takes. `make guide` writes this"
        " page.\n",
    ]
    best = [
        (f"[{CASES[name].title}]({name}.md)", training.title, f"`{training.best.strategy}`")
        for name, (training, _) in guides.items()
    ]
    parts.append("\n".join(table(("Case", "Request", "Best plan"), iter(best))) + "\n")
    for place, heading in ((0, "Training"), (1, "Serving, simulated and not searched")):
        found = [pair[place] for pair in guides.values()]
        questions = list(
            dict.fromkeys(
                (rule.name, rule.question)
                for guide in found
                if guide is not None
                for rule in guide.rules
                if rule.verdict is not None
            )
        )
        cells = [
            (
                question,
                *(
                    outcome_cell(
                        None
                        if guide is None
                        else next((rule for rule in guide.rules if rule.name == key), None)
                    )
                    for guide in found
                ),
            )
            for key, question in questions
        ]
        header = ("Question", *(CASES[name].title for name in names))
        parts.append(f"## {heading}\n\n" + "\n".join(table(header, iter(cells))) + "\n")
    return "\n".join(parts)


def main(words: list[str]) -> None:
    """Write the pages of the named cases, or all pages."""
    (FOLDER / "pictures").mkdir(parents=True, exist_ok=True)
    guides = {name: case_guides(name) for name in (words or CASES)}
    for name, (training, serving) in guides.items():
        (FOLDER / f"{name}.md").write_text(case_page(name, training, serving), encoding="utf-8")
        for file, text in case_pictures(name, training, serving).items():
            (FOLDER / "pictures" / file).write_text(text, encoding="utf-8")
    if not words:
        (FOLDER / "decision-tables.md").write_text(decision_tables(guides), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
