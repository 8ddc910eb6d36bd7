"""Parts that all readers share: settings with their meaning, the strategy and the job.

The parts that exporters share are in `export`.
"""
