"""``atropos env validate``: checks of an environment with scripted replies, before a GPU is paid for.

subject (environment, tasks, gold) -> tries -> played -> findings -> report
"""
