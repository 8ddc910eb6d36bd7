"""Lower bounds of step time and cost for all plans of a mixed cluster.

Plans are in search.mixed.plans.
"""
