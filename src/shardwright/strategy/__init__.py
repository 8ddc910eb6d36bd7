"""Strategies: grids, general plans, their notation and their rules.

Their lowering to tasks is in program.
"""
