"""A PostgreSQL server for the moves of a run."""

from __future__ import annotations

from tests.postgres_server import postgres

__all__ = ["postgres"]
