"""Clients of an inference server, a module per kind."""
