"""The HTTP surface: which paths exist, who may use them, how bodies come in and errors go out."""
