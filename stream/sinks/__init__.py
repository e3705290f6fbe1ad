"""Sinks: write batches; entering acquires, leaving cleanly commits."""
