"""The queue in SQL: common statements for SQLite and PostgreSQL."""
