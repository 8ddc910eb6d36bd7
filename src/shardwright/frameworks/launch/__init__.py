"""Parts that all readers share: settings with their meaning, the strategy and the job.

What writers share is in `export`.
"""
