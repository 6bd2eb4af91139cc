"""Environment whose rewards depend on the task alone: an interrupted run can be repeated exactly.

python -m tests.integration.pooled_env serve ...
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from atroposlib.envs.function_env.env import environment

TASKS = [{"id": f"{n}", "success": (0.0, 1.0, 0.5)[n % 3]} for n in range(12)]


@environment(dataset=TASKS, eval_fraction=0.0, name="pooled")
async def pooled(task: dict[str, Any], model: Any) -> float:
    await model.chat(task["id"], max_tokens=12)
    await asyncio.sleep(random.expovariate(1 / 0.03))
    return float(task["success"])


if __name__ == "__main__":
    pooled.cli()
