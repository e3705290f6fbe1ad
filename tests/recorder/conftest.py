"""The same question at the end of each test: is anything left behind?"""

from __future__ import annotations

from tests.cli.conftest import place, shared

__all__ = ["place", "shared"]
