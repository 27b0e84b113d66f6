"""`python -m kvctl`."""

from kvctl.main import main

main()
