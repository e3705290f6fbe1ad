"""A place of its own for the installed `stream`."""

from tests.cli.conftest import place

__all__ = ["place"]
