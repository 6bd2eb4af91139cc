"""Source of fresh ids of instances, claims, admissions and runs. A simulation replaces it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

source: Callable[[], uuid.UUID] = uuid.uuid4
