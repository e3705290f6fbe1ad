"""The sandboxes that tests start, and what they need on PATH."""

from __future__ import annotations

import shutil

import pytest

_NEEDS = {
    "bwrap": ("bwrap",),
    "srt": ("srt", "bwrap", "socat", "rg"),
    "codex": ("codex",),
    "firejail": ("firejail",),
    "runsc": ("runsc",),
}


def needs_sandbox(*names: str) -> pytest.MarkDecorator:
    """Skip a test where a sandbox, or what it needs itself, is not there."""
    missing = [tool for name in names for tool in _NEEDS[name] if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
