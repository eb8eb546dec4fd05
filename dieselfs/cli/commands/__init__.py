"""The commands of `dlcmd`, one module each, imported when it is used."""
