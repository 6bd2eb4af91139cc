"""The workbench: all runs below a folder on one page, and the comparison of two of them.

    folders of runs -> settings, steps, tasks -> differences, bands over seeds, pairs -> page,
                                                                             terminal, file

``run_folders`` reads files; ``run_settings``, ``overlay``, ``paired`` and ``run_diff`` are pure.
"""
