"""Collectives written as single messages: schedules, trees and their packing.

Formulas are in collectives.algorithms.
"""
