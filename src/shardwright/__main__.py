"""`python -m shardwright` and the installed command."""

from __future__ import annotations

import gc
import sys

from shardwright.cli.main import run


def main() -> None:
    """Run the command line and leave with its exit code."""
    # Nearly all that imports and kernels make lives as long as the process: to look it through again and again is a tenth of a plan's time.
    gc.set_threshold(50_000, 20, 20)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
