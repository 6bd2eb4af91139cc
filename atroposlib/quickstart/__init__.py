"""One command that starts every part of a run, watches it learn and writes a report.

    cli -> preflight -> models (and vllm_env) -> plan, commands -> launch -> verdict -> report
                                                          |
                         processes, supervisor, sources, view

``plan`` and ``verdict`` are pure: which processes, with which settings, and whether the
figures count as having learned. Everything that touches the machine is in the others.
"""
