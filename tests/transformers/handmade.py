"""Tables of documents that were made by hand: what is changed in a good one, and where the rule
that it breaks reports it. `path` is null where nothing is broken."""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.transformers.samples import DATA


def read_rows(name: str) -> list[dict[str, Any]]:
    text = (DATA / "handmade" / name).read_text()
    return [json.loads(line) for line in text.splitlines()]


def make_document(row: dict[str, Any], good: dict[str, Any]) -> bytes:
    """The good document, with the changes of the row."""
    value = copy.deepcopy(good)
    for path, new in row.get("set", {}).items():
        inner, last = _at(value, path)
        inner[last] = new
    for path in row.get("left_out", ()):
        inner, last = _at(value, path)
        del inner[last]
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if "text" in row:
        old, new = row["text"]
        assert old in text, row["what"]
        text = text.replace(old, new, 1)
    return text.encode()


def _at(value: Any, path: str) -> tuple[Any, Any]:
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        value = value[step]
    return value, last
