"""What every writer shares: the plan to export, what a target cannot say, start scripts, placement.

What readers share is in `launch`.
"""
