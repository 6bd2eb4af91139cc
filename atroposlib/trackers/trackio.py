"""Tracker for Trackio: local by default, shown by ``trackio show``, without an account."""

from __future__ import annotations

from atroposlib.trackers import OwnSteps, Run


def open_tracker(run: Run) -> OwnSteps:
    """Start a run, or resume the one of the same name; the name contains the run's id."""
    import trackio

    started = trackio.init(
        project=run.project,
        name="-".join(part for part in (run.cfg.run_name, run.key) if part) or None,
        group=run.cfg.wandb_group,
        resume="allow" if run.key else "never",
        config=run.settings(),
        embed=False,
    )
    return OwnSteps(started)
