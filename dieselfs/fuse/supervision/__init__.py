"""The processes of a mount: started, refreshed, replaced, shut down."""
