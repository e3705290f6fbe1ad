"""`python -m stream` is `stream`."""

from __future__ import annotations

from stream.cli import main

main()
