"""Trackio: local by default, read with ``trackio show``; no account."""

from __future__ import annotations

from atroposlib.trackers import OwnSteps, Run


def open_tracker(run: Run) -> OwnSteps:
    """Start a run, or go on with the one of the same name, which therefore holds the run's id."""
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
