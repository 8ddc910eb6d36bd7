"""What every reader shares: settings with their meaning, the strategy and the job.

What writers share is in `export`.
"""
