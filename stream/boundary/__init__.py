"""Boundary objects: catalogs, probe scripts, and the record that is built of what a probe says."""
