"""Other routers beside Pointsman, in one run. Separate because it installs software that is not ours."""
