"""The data path to engines: connections, requests and answers as bytes. It knows nothing of routing."""
