"""What the kernel saw of a run, as a source: feeds that deliver raw events in order."""
