"""Verify that a run or an archive is what it says: everything is read, and nothing is trusted."""
