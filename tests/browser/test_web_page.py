"""The page of `shardwright web` in Chromium: ask, watch, cancel, share, compare, drop files."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("fastapi", reason="needs the extra `web`")
pytest.importorskip("uvicorn", reason="needs the extra `web`")

from shardwright.api.request_to_command import command_text
from shardwright.search.search_request import Request
from tests.hardware.inventory_files import topo_matrix
from tests.web.running_server import LONG, SMALL, RunningServer, running_server

CONFIG = (Path(__file__).parents[1] / "model" / "configs" / "opt.json").read_text("utf-8")
PROVEN = "text=Proven: no plan of the searched space is faster."
REPORT = "What is the answer?"
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--workers", "2") as found:
        yield found


@pytest.fixture
def open_page(page_at: Callable[..., Any], server: RunningServer) -> Callable[..., Any]:
    """Function that opens an address of the server, such as ``/?model=...``, in a new page."""

    def open_address(path: str, **settings: Any) -> Any:
        page = page_at(server.address + path, **settings)
        page.set_default_timeout(WAIT_MS)
        return page

    return open_address


def path_of(page: Any) -> str:
    """Address of a page behind the server's name."""
    return "/" + str(page.url).split("/", maxsplit=3)[3]


def places_of_answers(page: Any) -> list[dict[str, float]]:
    """Edges of each answer in pixels, all at the same moment."""
    found: list[dict[str, float]] = page.evaluate(
        """() => [...document.querySelectorAll("article:not(.comparison)")]
             .map((part) => part.getBoundingClientRect().toJSON())"""
    )
    return found


def address(**change: object) -> str:
    return f"/?{urlencode({**SMALL, **change})}"


def test_a_question_of_the_form_is_answered_and_is_the_address(
    open_page: Callable[..., Any],
) -> None:
    page = open_page("/")
    for name, value in SMALL.items():
        page.fill(f"#{name}", str(value))
    page.click("#ask")
    page.wait_for_selector(PROVEN)
    assert path_of(page) == address()
    report = page.frame_locator("iframe").get_by_role("heading", name=REPORT)
    report.wait_for()
    best, lower, gap = (page.inner_text(f"[data-live={name}]") for name in ("best", "lower", "gap"))
    assert best == lower
    assert gap == "0.0 %"
    assert page.inner_text("#answers pre") == command_text(Request(**SMALL))
    # Another person opens the link, and sees the same strategy.
    strategy = page.inner_text(".strategy")
    assert open_page(path_of(page)).inner_text(".strategy") == strategy


def test_the_saved_file_is_the_plan_file(open_page: Callable[..., Any], tmp_path: Path) -> None:
    page = open_page(address())
    with page.expect_download() as download:
        page.click("text=Save the plan file")
    path = tmp_path / "plan.json"
    download.value.save_as(path)
    from shardwright.files.read_plan_and_simulation_files import read_saved

    assert read_saved(path).request.model == SMALL["model"]


def test_the_back_button_returns_to_the_question_before(open_page: Callable[..., Any]) -> None:
    page = open_page(address())
    page.wait_for_selector(PROVEN)
    page.fill("#global_batch", "32")
    page.click("#ask")
    page.wait_for_selector("h2:has-text('32 sequences')")
    page.wait_for_selector(PROVEN)
    page.go_back()
    page.wait_for_selector("h2:has-text('16 sequences')")
    assert page.input_value("#global_batch") == "16"


def test_two_questions_are_compared(open_page: Callable[..., Any]) -> None:
    page = open_page(address())
    page.wait_for_selector(PROVEN)
    page.fill("#cluster", "a100-sxm-80gb:8")
    page.click("#ask")
    page.wait_for_selector("h2:has-text('a100-sxm-80gb:8')")
    page.select_option("#with", label=page.locator("#with option").all_inner_texts()[1])
    page.wait_for_selector("text=Side by side")
    heads = page.locator(".comparison th").all_inner_texts()
    assert len(heads) == 3
    assert "a100-sxm-80gb:8" in heads[1]
    assert "h100-sxm:8" in heads[2]
    rates = [
        float(cell.replace(",", ""))
        for cell in page.locator(".comparison tr:has-text('Tokens a second') td").all_inner_texts()[
            1:
        ]
    ]
    reading = page.inner_text(".reading")
    assert reading.startswith("The second processes ")
    assert float(reading.split()[3]) == pytest.approx(rates[1] / rates[0], rel=1e-3)
    one, two = places_of_answers(page)
    assert one["top"] == two["top"]
    assert one["right"] <= two["left"]
    # The address has both questions, and each has an address of its own.
    other = open_page(path_of(page), width=360)
    other.wait_for_selector("text=Side by side")
    assert other.locator(".comparison th").all_inner_texts() == heads
    one, two = places_of_answers(other)
    assert one["bottom"] <= two["top"]
    other.click("h2 >> text=on h100-sxm:8")
    other.wait_for_selector(PROVEN)
    assert path_of(other) == address()
    # Without the other question there is one answer again.
    page.select_option("#with", "")
    page.wait_for_selector("#answers:not(.compared)")
    assert path_of(page) == address(cluster="a100-sxm-80gb:8")


def test_the_files_of_both_compared_questions_are_in_the_link(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(CONFIG, "utf-8")
    page = open_page(address(seq_len=2048))
    page.wait_for_selector(PROVEN)
    page.set_input_files("#model-file", config)
    page.click("#ask")
    page.wait_for_selector("h2:has-text('config.json')")
    page.click(".file[data-of=model] button")
    page.click("#ask")
    page.wait_for_selector("h2:has-text('llama-3.2-1b')")
    page.select_option("#with", label=page.locator("#with option").all_inner_texts()[1])
    page.wait_for_selector("text=Side by side")
    assert "#with_files=" in page.url
    heads = page.locator(".comparison th").all_inner_texts()
    assert "config.json" in heads[2]
    other = open_page(path_of(page))
    other.wait_for_selector("text=Side by side")
    assert other.locator(".comparison th").all_inner_texts() == heads


def test_a_question_whose_files_are_too_long_for_the_link_is_compared(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    noise = secrets.token_hex(40_000)
    config.write_text(json.dumps({**json.loads(CONFIG), "comment": noise}), "utf-8")
    page = open_page(address(model="", seq_len=2048, global_batch=24))
    page.set_input_files("#model-file", config)
    page.click("#ask")
    page.wait_for_selector("text=too long for the address")
    page.wait_for_selector(PROVEN)
    page.click(".file[data-of=model] button")
    page.fill("#model", SMALL["model"])
    page.click("#ask")
    page.wait_for_selector("h2:has-text('llama-3.2-1b')")
    page.select_option("#with", "1")
    page.wait_for_selector("text=Side by side")
    assert "config.json" in page.locator(".comparison th").all_inner_texts()[2]


def test_strategies_of_one_request_are_compared(open_page: Callable[..., Any]) -> None:
    page = open_page(address())
    page.click("summary")
    page.fill("#strategy", "tp2 dp4 mbs1 zero1\ntp8 mbs1 zero1")
    page.fill("#tokens", "1e9")
    page.click("#ask")
    page.wait_for_selector("text=Cost of training")
    assert page.locator("#answers th").all_inner_texts() == ["Figure", "Strategy 1", "Strategy 2"]
    assert "--strategy 'tp2 " in page.inner_text("#answers pre")
    assert page.inner_text("#answers pre").startswith("shardwright compare llama-3.2-1b")
    assert page.inner_text("#answers pre").endswith("--tokens 1B")
    page.frame_locator("iframe").get_by_role("heading", level=2).first.wait_for()


@pytest.mark.parametrize("guide_for", ["", "serving"])
def test_the_rules_of_a_guide_are_shown(open_page: Callable[..., Any], guide_for: str) -> None:
    asked = {**SMALL, "cluster": "h100-sxm:2", "seq_len": 1024}
    page = open_page("/")
    page.click("summary")
    for name, value in asked.items():
        page.fill(f"#{name}", str(value))
    page.select_option("#guide_for", guide_for)
    page.click("#guide")
    page.wait_for_selector("text=Each rule is judged by")
    questions = page.locator("#answers tbody td:first-child").all_inner_texts()
    assert len(questions) >= 2
    guide = page.frame_locator("iframe")
    for question in ["What is the best plan?", *questions]:
        guide.get_by_role("heading", name=question).first.wait_for()
    assert "ask=guide" in page.url
    again = open_page(path_of(page))
    again.wait_for_selector("text=Each rule is judged by")
    assert again.locator("#answers tbody td:first-child").all_inner_texts() == questions
    with page.expect_download() as download:
        page.click("text=Save the guide file")
    file = Path(download.value.path())
    assert json.loads(file.read_text())["schema"] == "shardwright.guide"
    # The other button asks for the plan again.
    page.click("#ask")
    page.wait_for_selector(PROVEN)
    assert "ask=" not in page.url


def test_cancel_ends_the_search(open_page: Callable[..., Any], server: RunningServer) -> None:
    page = open_page(f"/?{urlencode({**LONG, 'global_batch': 15360 + 64})}")
    page.wait_for_selector(".now:not(:empty)")
    page.click("#cancel")
    page.wait_for_selector("text=Cancelled.")
    if not Path("/proc/self/stat").exists():
        return
    for _ in range(200):
        if not server.searching():
            return
        time.sleep(0.05)
    raise AssertionError(server.searching())


def test_dropped_files_are_the_question_and_part_of_the_link(
    open_page: Callable[..., Any],
) -> None:
    page = open_page("/")
    topology = topo_matrix(8, lambda _one, _other: "NV18")
    files = [("config.json", CONFIG), ("topo.txt", topology)]
    page.evaluate(
        """files => {
          const data = new DataTransfer();
          for (const [name, text] of files) data.items.add(new File([text], name));
          document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
        }""",
        files,
    )
    page.wait_for_selector(".file[data-of=cluster]:visible")
    page.wait_for_selector(".file[data-of=model]:visible")
    page.fill("#cluster_accelerator", "h100-sxm")
    page.fill("#seq_len", "2048")
    page.fill("#global_batch", "16")
    page.click("#ask")
    page.wait_for_selector(PROVEN)
    assert "#files=" in page.url
    open_page(path_of(page)).wait_for_selector(PROVEN)


def test_a_launch_script_is_advised(open_page: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "pretrain.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --seq-length 4096"
        " --global-batch-size 64 --micro-batch-size 1 --bf16 --use-distributed-optimizer"
        " --num-layers 16 --hidden-size 2048 --num-attention-heads 32"
    )
    page = open_page("/")
    page.fill("#model", "llama-3.2-1b")
    page.fill("#cluster", "h100-sxm:8")
    page.set_input_files("#launch-files", script)
    page.wait_for_selector(".file[data-of=launch]:visible")
    page.click("#ask")
    page.wait_for_selector("text=searched for faster changes")
    assert "megatron" in page.inner_text(".strategy")
    assert page.locator("#answers tbody tr").count() >= 1
    page.frame_locator("iframe").get_by_role("heading", level=2).first.wait_for()


def test_what_if_is_searched_into_the_report(open_page: Callable[..., Any]) -> None:
    page = open_page(address(global_batch=8))
    page.click("text=What if? Search other batches")
    page.wait_for_selector("text=The report has the best plans of changed requests.")
    report = page.frame_locator("iframe")
    report.get_by_role("heading", name="What if").first.wait_for()


def test_an_error_is_a_line_and_a_hint(open_page: Callable[..., Any]) -> None:
    page = open_page(address(model="lama"))
    page.wait_for_selector(".now.error")
    assert "not in the catalog" in page.inner_text(".now.error")
    assert page.inner_text(".now.error .hint")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("view", ["plan", "pair", "guide"])
def test_it_fits_and_everyone_can_use_it(
    open_page: Callable[..., Any], scheme: str, width: int, view: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    change, shown = {
        "plan": ({}, PROVEN),
        "pair": ({"with": urlencode({**SMALL, "global_batch": 32})}, "text=Side by side"),
        "guide": ({"ask": "guide", "cluster": "h100-sxm:2"}, "text=Each rule is judged by"),
    }[view]
    page = open_page(address(**change), scheme=scheme, width=width, height=800)
    page.wait_for_selector(shown)
    page.click("summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page, options={"iframes": False}).response["violations"]
    assert json.dumps([(one["id"], [n["html"] for n in one["nodes"]]) for one in found]) == "[]"
