"""Clients of one inference server, one module per kind."""
