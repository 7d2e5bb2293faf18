"""Settings of the whole test-suite."""

from hypothesis import HealthCheck, settings

# Machines are shared: how long one example takes says nothing, and a failure must come back the next time.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=150
)
settings.load_profile("suite")
