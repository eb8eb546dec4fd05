"""The parts of `dlcmd mount`: its request, its options, and the server it starts."""
