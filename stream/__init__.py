"""stream takes evidence about sandboxes and coding-agent runs, as NDJSON streams."""

from __future__ import annotations

__version__ = "0.1.0"
