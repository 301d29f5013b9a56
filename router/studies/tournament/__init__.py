"""All policies against all workloads."""
