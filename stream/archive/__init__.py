"""The evidence of a run as one file that is the same wherever it is made, and who doubts it."""
