"""Reports of studies as one file each: tables and plots that need no network and no script."""
