"""Seconds and bytes of pipeline stages on each kind of device.

Whole pipelines are in search.mixed.pipelines.
"""
