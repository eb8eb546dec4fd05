"""Object stores, and the wrappers that bound waits for them."""
