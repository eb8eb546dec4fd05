"""`python -m dieselfs.cli` runs `dlcmd` where the command is not on the path."""

from dieselfs.cli import main

main()
