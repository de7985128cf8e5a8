"""`python -m epctl`."""

from epctl.cli import main

main()
