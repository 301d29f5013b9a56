"""Workloads and the experiments made with them. Nothing here runs inside the live router."""
