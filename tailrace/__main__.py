"""`python -m tailrace` is the command `tailrace`."""

from tailrace.cli import main

main()
