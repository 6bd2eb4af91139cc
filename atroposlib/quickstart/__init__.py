"""Quickstart: a command that starts a run, monitors its learning and writes a report.

    __main__ -> preflight -> models (and vllm_env) -> recipes, commands -> launch -> report
                                                                             |
                                                       processes, live.sources, live.view

``recipes``, ``commands`` and ``verdict`` are pure: the processes with their settings, and the
criteria of learning. All access to the machine is in the other modules.
"""
