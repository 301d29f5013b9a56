"""The real pools, policies and engine model under a virtual clock."""
