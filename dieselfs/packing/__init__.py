"""`dlcmd put`: pack a tree of files into chunks, with several processes."""
