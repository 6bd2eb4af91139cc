"""The proxy in parts: pure translations of three APIs, sessions, rows, guards, routes."""
