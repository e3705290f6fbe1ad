"""The command line: parse, compose, run."""

from __future__ import annotations


def main() -> None:
    import gc
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until a command holds something, an interrupt just ends us: no traceback of imports.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Imports make objects that stay: to look for garbage among them is a tenth of the start-up.
    gc.disable()
    from stream.cli.app import app
    from stream.cli.running import start

    start(app)
