"""Groups of a scatter chart for plans that do not fit, grey and named after the broken limit."""

from __future__ import annotations

from typing import Final

from shardwright.report.page.view_data_types.scatter_chart_data import ScatterGroup

BEYOND_DEVICE: Final = ScatterGroup(name="does not fit in a device's memory", series=7, solid=False)
BEYOND_HOST: Final = ScatterGroup(
    name="does not fit in a node's host memory", series=8, solid=False
)
