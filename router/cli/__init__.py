"""The command line. It starts things and prints; what it starts lives elsewhere."""
