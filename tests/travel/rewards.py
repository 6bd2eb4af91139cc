"""Rewards of stored rollouts, for tests: plain, async, slow, failing, and with live needs."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import count


def reward(completion, target):
    return float(completion.strip() == str(target))


async def awaited(completion, target):
    await asyncio.sleep(0)
    return {"right": float(completion.strip() == str(target)), "short": 0.5}


def in_lists(completions, **columns):
    return [float(len(completion)) for completion in completions]


def of_item(completion, gold):
    return float(completion.strip() == gold)


def uncertain(completion, target, reward):
    """A failure of each kind for wrong replies, by the digit of the reply."""
    if completion == "7":
        raise ValueError("seven <b>is</b> bold")
    if completion == "8":
        return None
    return reward


def endless(completion):
    for _ in count():
        try:
            time.sleep(1)
        except Exception:  # a reward that hides every error
            pass


async def endless_async(completion):
    await asyncio.sleep(1e6)


def dies(completion):
    if completion == "7":
        os._exit(3)
    return 1.0


def in_sandbox(completion):
    return 1.0


in_sandbox.needs = ["sandbox"]
