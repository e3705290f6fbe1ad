"""Processes: how a tree is started, watched, captured, guarded and ended."""
