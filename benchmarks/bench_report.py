"""The report of a stored plan: CPU seconds of its process, and bytes of its page.

`make browser` prints the time to the first picture and of a frame while zooming.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench_process import LARGE, RUNS, cpu_seconds

COMMANDS = {
    1024: ("plan", "llama-3.1-405b", "h100-sxm:1024", "--seq-len", "8192", "--global-batch", "512"),
    16384: LARGE,
}


class Report:
    """A report of a plan for so many devices."""

    params = tuple(COMMANDS)
    param_names = ("devices",)
    timeout = 600

    def setup(self, devices: int) -> None:
        """Search the plan."""
        self.folder = TemporaryDirectory()
        self.plan = str(Path(self.folder.name) / "plan.json")
        self.page = Path(self.folder.name) / "plan.html"
        cpu_seconds((*COMMANDS[devices], "-o", self.plan))
        self.words = ("report", self.plan, "-o", str(self.page))
        cpu_seconds(self.words)

    def teardown(self, devices: int) -> None:
        """Remove the files."""
        self.folder.cleanup()

    def track_process(self, devices: int) -> float:
        """Median CPU seconds of `shardwright report`; the bar is 3 beyond the plan."""
        return sorted(cpu_seconds(self.words) for _ in range(RUNS))[RUNS // 2]

    track_process.unit = "CPU seconds"  # type: ignore[attr-defined]

    def track_page(self, devices: int) -> int:
        """Bytes of the page; the bars are 400,000 and 900,000."""
        return self.page.stat().st_size

    track_page.unit = "bytes"  # type: ignore[attr-defined]
