"""`python -m dieselfs` runs `dlcmd`."""

from dieselfs.cli import main

main()
