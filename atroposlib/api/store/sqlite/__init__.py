"""SQLite store: one file that survives kill -9 and power cuts."""
