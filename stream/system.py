"""The machine that something was observed on."""

from __future__ import annotations

import os
from functools import cache


@cache
def system_name() -> str:
    """uname -srm, as the harness sees it."""
    name = os.uname()
    return f"{name.sysname} {name.release} {name.machine}"
