"""Write runs.json of the simulator again, after frameworks have changed their options.

    python tools/shipped_runs.py

The listed runs stay; their options are computed again.
"""

from __future__ import annotations

import json

from interval_fit import runs_text

from shardwright.simulator.step_time_interval import FILE

if __name__ == "__main__":
    ran = json.loads(FILE.read_text(encoding="utf-8"))["ran"]
    FILE.write_text(runs_text(map(tuple, ran)), encoding="utf-8")
