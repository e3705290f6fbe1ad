"""The archive of a run: which files it has, how it is written, and how it is read."""
