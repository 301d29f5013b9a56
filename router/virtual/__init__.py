"""Time and network that exist only in memory, so that hours of a live system pass in seconds, repeatably."""
