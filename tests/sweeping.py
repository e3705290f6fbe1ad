"""How much a test tries: a sample in every run, everything in a sweep (`pytest -m sweep`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

QUICK = 5  #: a run tries one of so many examples of a sweep


def is_sweep() -> bool:
    """Return whether this run tries everything: tests/conftest.py has chosen the profile."""
    return settings.default is not None and not settings.default.derandomize


def thorough(examples: int, **how: Any) -> settings:
    """Settings of a Hypothesis test that tries so many examples in a sweep."""
    return settings(max_examples=examples if is_sweep() else max(40, examples // QUICK), **how)


def every(step: int) -> pytest.MarkDecorator:
    """Parametrise a test over `step`: each so many places in every run, each place in a sweep."""
    all_places = pytest.param(1, id="all", marks=pytest.mark.sweep)
    return pytest.mark.parametrize("step", [pytest.param(step, id="sample"), all_places])


def first_of(*rows: Any) -> list[Any]:
    """Rows to parametrise a test over: every run tries the first one, a sweep the others."""
    first, *others = (row if hasattr(row, "marks") else pytest.param(row) for row in rows)
    return [
        first,
        *(
            pytest.param(*row.values, marks=[*row.marks, pytest.mark.sweep], id=row.id)
            for row in others
        ),
    ]
