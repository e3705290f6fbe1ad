"""Fixtures that every test may use."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.load_profile("default")

_ASYNCIO = pytest.param(("asyncio", {"debug": True}), id="asyncio")
_TRIO = pytest.param(("trio", {}), id="trio")


@pytest.fixture(params=[_ASYNCIO, _TRIO])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
