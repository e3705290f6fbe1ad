"""`python -m stream` is `stream`."""

from stream.cli import main

main()
