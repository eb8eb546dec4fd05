"""`python -m dieselfs.cli`, for where the command `dlcmd` is not on the path."""

from dieselfs.cli import main

main()
