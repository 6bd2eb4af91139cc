"""Quickstart: one command that starts a run, monitors its learning and writes a report.

    cli -> preflight -> models (and vllm_env) -> plan, commands -> launch -> verdict -> report
                                                          |
                         processes, supervisor, sources, view

``plan`` and ``verdict`` are pure: the processes with their settings, and the criteria of
learning. All access to the machine is in the other modules.
"""
