"""Shared parts of all commands: common flags, the log format, the error line."""
