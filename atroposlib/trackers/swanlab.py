"""Tracker for SwanLab. ``SWANLAB_MODE=offline`` (or ``local``) needs no account and no network."""

from __future__ import annotations

from atroposlib.trackers import DEFAULT_PROJECT, OwnSteps, Run


def open_tracker(run: Run) -> OwnSteps:
    """Start a run, or resume the one of the same id."""
    import swanlab

    started = swanlab.init(
        project=run.project or DEFAULT_PROJECT,
        group=run.group,
        name=run.shown_name,
        id=run.key,
        resume="allow" if run.key else None,
        config=dict(run.settings),
    )
    return OwnSteps(started)  # accepts a repeated step
