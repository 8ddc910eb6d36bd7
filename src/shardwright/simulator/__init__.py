"""Simulated steps of plans: time, memory, traffic and predictions. Prices of tasks are in cost."""
