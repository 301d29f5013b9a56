"""What the router tells its operators: Prometheus series, the request log and the program's own log."""
