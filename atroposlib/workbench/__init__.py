"""The workbench: a page over all runs below a folder, and the comparison of two runs.

    folders of runs -> settings, steps, tasks -> differences, bands over seeds, pairs -> page,
                                                                             terminal, file

``run_folders`` reads files; ``run_settings``, ``overlay``, ``paired`` and ``run_diff`` are pure.
"""
