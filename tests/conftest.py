"""Nothing is tested by wall-clock limits, so hypothesis has no deadline either."""

from hypothesis import HealthCheck, settings

settings.register_profile("ppsim", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ppsim")
