"""stream takes evidence about sandboxes and coding-agent runs, as NDJSON streams."""

__version__ = "0.1.0"
