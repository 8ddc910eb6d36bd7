"""The answer of each verb on a terminal and as JSON.

Pictures are in report.pictures, serving answers in report.serving.
"""
