"""Parts that all exporters share: the plan to export, shortfalls, start scripts, placement.

The parts that readers share are in `launch`.
"""
