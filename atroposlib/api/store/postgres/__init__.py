"""PostgreSQL store: one schema that several API replicas share."""
