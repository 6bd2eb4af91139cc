"""Function environments for a server of OpenEnv: turns, a tool, no score, a failure."""

from __future__ import annotations

from typing import Any

from atroposlib.envs import environment

TASKS = [{"id": f"digit {n}", "digit": n} for n in range(8)]


@environment(TASKS, eval_fraction=0, shuffle=False)
async def digits(task: Any, model: Any) -> float:
    """Right: 1; wrong: -0.25, and the third one ends it."""
    reply = await model.chat([{"role": "user", "content": f"Guess: 0 to {task['digit']}."}])
    for _ in range(2):
        if reply == str(task["digit"]):
            break
        model.reward(-0.25)
        reply = await model.chat([*reply.messages, {"role": "user", "content": "No."}])
    return float(reply == str(task["digit"]))


@environment(TASKS, eval_fraction=0, shuffle=False)
async def adds(task: Any, model: Any) -> float:
    async def add(a: int, b: int) -> int:
        """Sum."""
        return a + b

    reply = await model.use_tools(f"{task['digit']} + 1?", tools=[add])
    return float(reply == str(task["digit"] + 1))


@environment(TASKS, eval_fraction=0, shuffle=False)
async def moody(task: Any, model: Any) -> float | None:
    if await model.chat("Well?") == "fail":
        raise RuntimeError("the checker fell over")
    return None


@environment(TASKS, eval_fraction=0, shuffle=False)
async def rewritten(task: Any, model: Any) -> float:
    """Two conversations in one rollout."""
    first = await model.chat("Draft?")
    return float(await model.chat(f"Better than {first}?") == "yes")
