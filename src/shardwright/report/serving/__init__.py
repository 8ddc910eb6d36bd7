"""Answers about deployments on a terminal and as JSON.

Answers about training are in report.screens.
"""
