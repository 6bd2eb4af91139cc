"""Curriculum: choice of the next task, choice of the groups that are sent, and their observation.

    sampler --next--> task --rollouts--> scored group --observe--> sampler
                                               '--admit--> gate --> sent, or dropped and counted

Both parts are plug-ins: a built-in name, ``MODULE:CLASS``, ``FILE.py:CLASS`` or an entry point.
"""

from atroposlib.envs.curriculum.interface import GroupGate, ObservedGroup, Task, TaskSampler

__all__ = ["GroupGate", "ObservedGroup", "Task", "TaskSampler"]
