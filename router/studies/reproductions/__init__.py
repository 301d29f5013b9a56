"""The published experiments that the policies come from, run again with ours."""
