"""Sources: own their processes and descriptors, push batches."""
