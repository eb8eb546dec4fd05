"""A process in its task's cache: it leads the node or joins the master, and reads."""
