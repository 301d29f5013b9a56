"""What Pointsman costs in time and memory. Separate from tests: the figures depend on the machine."""
