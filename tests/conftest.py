"""Settings of all tests: a slow machine is no failure, and a run on the same code finds the same."""

from hypothesis import HealthCheck, settings

settings.register_profile("shardwright", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shardwright")
