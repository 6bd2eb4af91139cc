"""Curriculum: which task comes next, which groups are sent, and what groups said about tasks.

    sampler --next--> task --rollouts--> scored group --observe--> sampler
                                               '--admit--> gate --> sent, or dropped and counted

Both parts are plug-ins: a built-in name, ``MODULE:CLASS``, ``FILE.py:CLASS`` or an entry point.
"""

from atroposlib.envs.curriculum.interface import Gate, ObservedGroup, Task, TaskSampler

__all__ = ["Gate", "ObservedGroup", "Task", "TaskSampler"]
