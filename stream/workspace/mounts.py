"""Which mounts lie in a folder: each hides what was in its place."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ESCAPED = re.compile(rb"\\([0-7]{3})")


def mounts_below(folder: Path) -> dict[bytes, bytes]:
    """The path of each from the folder, by the number that it has until it goes. The folder
    itself is none of them."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return {}
    above = os.path.join(os.fsencode(os.path.realpath(folder)), b"")  # noqa: PTH118
    points = {}
    for number, _, _, _, point, *_ in map(bytes.split, lines):
        path = _ESCAPED.sub(lambda escape: bytes([int(escape[1], 8)]), point)
        if path.startswith(above):
            points[number] = path.removeprefix(above)
    return points
