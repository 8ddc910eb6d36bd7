"""Benchmarks of the bars, run by asv."""
