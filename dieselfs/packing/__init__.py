"""`dlcmd put`: a tree of files becomes chunks, by several processes."""
