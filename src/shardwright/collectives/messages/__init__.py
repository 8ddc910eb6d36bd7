"""Collectives written as single messages: schedules, spanning trees and their packing.

Formulas are in collectives.algorithm_costs.
"""
