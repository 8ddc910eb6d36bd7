"""What every reader of a framework needs: settings with their meaning, the strategy and the job.

Readers are beside it.
"""
