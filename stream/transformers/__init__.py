"""Stages: pure, synchronous; batches in, batches out."""
