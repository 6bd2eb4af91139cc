"""The queue in SQL: one set of statements for SQLite and PostgreSQL."""
