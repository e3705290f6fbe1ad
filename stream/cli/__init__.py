"""The command line: parse, compose, run."""

from __future__ import annotations


def main() -> None:
    """Run the `stream` command, and leave with its exit code."""
    # These two are built into the interpreter: `import signal` takes long enough to be interrupted.
    import _signal  # type: ignore[import-not-found]
    import sys

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        # Until a command holds something, an interrupt just ends us: no traceback of imports.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    import gc

    # Imports make objects that stay: to look for garbage among them is a tenth of the start-up.
    gc.disable()
    try:
        from stream.cli.app import app
        from stream.cli.runner import start_app
    except (MemoryError, OSError, ImportError) as error:
        from stream.errors import resource_shortage

        if (sentence := resource_shortage(error)) is None:
            raise
        sys.stderr.write(f"stream: {sentence}\n")
        sys.exit(2)
    start_app(app)
