"""Parts that all writers share: the plan to export, shortfalls of a target, start scripts,
placement.

What readers share is in `launch`.
"""
