"""What all tests share: property tests are judged by what they find, not by how fast the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("pointsman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pointsman")
