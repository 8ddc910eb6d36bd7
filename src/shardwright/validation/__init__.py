"""Validation: predicted against measured, over tables of training runs and served configurations.

`tables`, `fits` and `errors` are one engine for both kinds of table; `training` and `serving` are
its two readers. The predictions themselves are made in simulator and serving.
"""
