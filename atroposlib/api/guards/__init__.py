"""Guards before every route: tokens, bodies and their memory, slow clients, logs."""
