"""Tracker for Trackio: local by default, shown by ``trackio show``, without an account."""

from __future__ import annotations

from atroposlib.trackers import DEFAULT_PROJECT, OwnSteps, Run


def open_tracker(run: Run) -> OwnSteps:
    """Start a run, or resume the one of the same name; the name contains the run's id."""
    import trackio

    started = trackio.init(
        project=run.project or DEFAULT_PROJECT,
        name="-".join(part for part in (run.name, run.key) if part) or None,
        group=run.group,
        resume="allow" if run.key else "never",
        config=dict(run.settings),
        embed=False,
    )
    return OwnSteps(started)
