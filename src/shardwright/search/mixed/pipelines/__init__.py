"""Pipelines over several kinds of device: their throughput and the device prices that bound it."""
