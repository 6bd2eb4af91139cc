"""Quickstart: a command that starts a run, monitors its learning and writes a report.

    __main__ -> preflight -> atroposlib.quickstart.models (and vllm_env) -> recipes -> plan
                                                                                        |
                                                          report, verdict <- launch <---'
                                                                               |
                                                                     example_trainer.launch

``recipes``, ``plan`` and ``verdict`` are pure: the settings of a run as a plan of the launcher, and
the criteria of learning. ``preflight``, ``launch`` and ``report`` use the machine.
"""
