"""Where metrics go."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class WatchSettings(BaseModel):
    log_dir: str = Field("./logs", description="metrics.jsonl goes here")
    metrics_path: str | None = Field(
        None, description="one JSON line per step (default: log_dir/metrics.jsonl)"
    )
    trackers: list[Literal["wandb", "tensorboard", "swanlab", "trackio"]] = Field(
        [], description="where metrics go beside the file; names in atroposlib.trackers"
    )
    run_name: str | None = Field(None, description="name of the run in the trackers")
    use_wandb: bool = Field(False, description="also log to Weights & Biases")
    wandb_project: str | None = Field(None, description="project in the trackers")
    wandb_group: str | None = Field(None, description="group (default: 8 random characters)")
    live_table: bool | None = Field(
        None, description="a table that follows the run (default: when stdout is a terminal)"
    )
    benchmark: bool = Field(False, description="print mean seconds of every phase at the end")
