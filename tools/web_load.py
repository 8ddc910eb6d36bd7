"""Measure a web server under users who plan: wall times of its answers.

    python tools/web_load.py --users 20 --seconds 60 --questions 24

It starts a server of its own on two workers. Each user asks one of the questions, waits for the
answer, thinks for half a second to two seconds, and asks again; so the first answers are searched
and later ones are kept. Wall times depend on what else the machine does: the load average is
printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-2-13b",
    "qwen2.5-7b",
    "mistral-7b",
)


def questions(number: int) -> list[bytes]:
    """Bodies of different questions about training on 64 to 1,024 H100."""
    draw = random.Random(1)
    bodies: dict[bytes, None] = {}
    while len(bodies) < number:
        request = {
            "model": draw.choice(MODELS),
            "cluster": f"h100-sxm:{draw.choice((64, 128, 256, 512, 1024))}",
            "seq_len": draw.choice((4096, 8192)),
            "global_batch": draw.choice((512, 1024, 2048)),
        }
        bodies[json.dumps({"request": request}).encode()] = None
    return list(bodies)


def ask(address: str, body: bytes) -> int:
    """HTTP status of a question, when its whole answer is there."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}api/plan", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def load(
    address: str, *, users: int, seconds: float, bodies: list[bytes]
) -> tuple[list[float], Counter[int]]:
    """Seconds of every answer in the order of asking, and the number of answers by status."""
    end, statuses = time.monotonic() + seconds, Counter[int]()
    times: list[tuple[float, float]] = []

    def user(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            start = time.monotonic()
            statuses[ask(address, draw.choice(bodies))] += 1
            times.append((start, time.monotonic() - start))
            time.sleep(draw.uniform(0.5, 2.0))

    threads = [threading.Thread(target=user, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [taken for _, taken in sorted(times)], statuses


def summary_line(name: str, times: list[float]) -> str:
    """A line with the number, the median, the 95th percentile and the largest of some times."""
    ranked = sorted(times)
    median, late, last = (ranked[int(share * (len(ranked) - 1))] for share in (0.5, 0.95, 1.0))
    return (
        f"{name}: {len(ranked)} answers, median {median:.3f} s, p95 {late:.3f} s, most {last:.3f} s"
    )


def main() -> None:
    """Run the load and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--questions", type=int, default=24)
    options = parser.parse_args()
    bodies = questions(options.questions)
    words = ["web", "--port", "0", "--quiet", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "shardwright", *words], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            for name in ("first minute", "warm"):
                times, statuses = load(
                    address, users=options.users, seconds=options.seconds, bodies=bodies
                )
                average = f"load average {os.getloadavg()[0]:.1f}"
                line = summary_line(name, times)
                sys.stdout.write(f"{line}, statuses {dict(statuses)}, {average}\n")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
