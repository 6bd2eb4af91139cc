"""Settings of the loop: rollout API, saving, recovery, evaluation, metrics, ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from atroposlib.trackers import TrackerName, known_trackers, tracker_names
from example_trainer.settings.section import Section

RECOVERY_WRITE_S = 1800.0  # bound of writing a recovery checkpoint


class RunSettings(Section):
    """The rollout API, saving, recovery."""

    atropos_url: str = Field(
        "http://localhost:8000",
        description="rollout API, or file:///path of a file that holds its address",
    )
    lease_s: float = Field(
        600.0,
        gt=0,
        description="a batch of a trainer that fell silent for this long may be trained by"
        " another; the lease is extended while a step runs",
    )
    batch_timeout_s: float = Field(
        3600.0, gt=0, description="give up when no batch can be formed for this long"
    )
    take_over: bool = Field(
        False,
        description="register although another trainer of this run is alive, and replace it",
    )
    max_staleness: int | None = Field(
        None,
        ge=0,
        description="versions between the start of a rollout and its training that environments"
        " are paced to (max_head_offpolicyness; default: no pacing)",
    )
    staleness_policy: Literal["keep", "mask", "drop"] = Field(
        "keep", description="what the rollout API does with groups that are older all the same"
    )

    require_certificate: Literal["off", "warn", "refuse"] = Field(
        "off",
        description="what the rollout API does with groups of which a claim is refuted or absent"
        " (docs/reliability.md, the certificate of a batch)",
    )

    # --- saving: each counter on its own, a save when any counter is full ---------------
    save_path: str = Field("trained_model_checkpoints", description="checkpoints go here")
    checkpoint_interval: int = Field(
        3, ge=0, description="steps between saved models; 0: only the final one"
    )
    save_every_epochs: int | None = Field(
        None, ge=1, description="epochs between saved models"
    )
    save_every_s: float | None = Field(None, gt=0, description="seconds between saved models")
    keep_saved: int | None = Field(
        None, ge=1, description="saved models kept (default: all of them)"
    )

    # --- recovery -------------------------------------------------------------------------
    recover_mode: Literal["disabled", "auto", "fault", "resume"] = Field(
        "auto",
        description="auto: go on from save_path/recover if it holds a checkpoint of this run, or"
        " of an unfinished earlier one with the same settings;"
        " fault: only when the launcher restarts the trainer; resume: there must be one;"
        " disabled: neither write nor read any",
    )
    recover_every_epochs: int | None = Field(None, ge=1, description="epochs between them")
    recover_every_steps: int | None = Field(
        None,
        ge=1,
        description="steps between recovery checkpoints, which are written while training goes on",
    )
    recover_every_s: float | None = Field(
        None,
        gt=0,
        description="seconds between them (default: 600 if neither epochs nor steps are set);"
        " batches after the last one are trained again after a crash",
    )
    keep_recover: int = Field(2, ge=1, description="recovery checkpoints kept")
    recover_retries: int = Field(
        3, ge=0, description="times the launcher starts a trainer again that failed"
    )

    @property
    def trainer_retries(self) -> int:
        """Times a launcher starts a failed trainer again."""
        return self.recover_retries if self.recover_mode in ("auto", "fault") else 0


class EvaluationSettings(Section):
    """Evaluation at a fixed version; in a file also ``evaluation: {every, environments, where}``."""

    eval_command: list[str] | None = Field(
        None,
        description="program and arguments, run while the servers hold one version; {version},"
        " {step}, {url} and {out} are filled in; numbers in {out}/metrics.json are logged",
    )
    eval_environments: list[str] = Field(
        [],
        description="environments whose held-out tasks are evaluated: names of the plan, or what"
        " follows `atropos eval` on a command line, such as 'sums.py --env.eval_items 50'",
    )
    eval_where: Literal["shared", "held", "dir"] = Field(
        "shared",
        description="shared: on the servers of the rollouts, and training waits; held: a share of"
        " them keeps its version meanwhile; dir: a server of its own loads an export",
    )
    eval_share: float = Field(
        0.25, gt=0, lt=1, description="share of the servers that held keeps, at least one"
    )
    eval_url: str | None = Field(
        None, description="server of dir (default: `atropos run` starts one)"
    )
    eval_every_epochs: int | None = Field(None, ge=1, description="epochs between evaluations")
    eval_every_steps: int | None = Field(None, ge=1, description="steps between evaluations")
    eval_every_s: float | None = Field(None, gt=0, description="seconds between evaluations")
    eval_at_start: bool = Field(False, description="evaluate once before the first step")
    eval_timeout_s: float = Field(
        1800.0,
        gt=0,
        description="bound of one evaluation, also named evaluation_timeout_s; held and dir then"
        " have the results of the tasks done by then, marked as partial",
    )

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate."""
        return self.eval_command is not None or bool(self.eval_environments)


class WatchSettings(Section):
    """Destinations of metrics."""

    log_dir: str = Field("./logs", description="metrics.jsonl goes here")
    metrics_path: str | None = Field(
        None, description="one JSON line per step (default: log_dir/metrics.jsonl)"
    )
    trackers: list[TrackerName | str] = Field(
        [],
        description="where metrics go in addition to the file; names in atroposlib.trackers, or"
        " MODULE:FUNCTION, FILE.py:FUNCTION",
    )
    run_name: str | None = Field(None, description="name of the run in the trackers")
    use_wandb: bool = Field(False, description="also log to Weights & Biases")
    wandb_project: str | None = Field(None, description="project in the trackers")
    wandb_group: str | None = Field(None, description="group (default: 8 random characters)")
    live_table: bool | None = Field(
        None, description="a table that follows the run (default: when stdout is a terminal)"
    )
    notes_rows: Annotated[int | None, BeforeValidator(lambda v: None if v == "all" else v)] = (
        Field(
            None,
            ge=0,
            description="rows of each batch whose advantages, logprobs and clipped tokens go to the"
            " rollout API after the ack, for its explorer (default: all; 0: none)",
        )
    )
    benchmark: bool = Field(False, description="print mean seconds of every phase at the end")

    @field_validator("trackers")
    @classmethod
    def _are_known(cls, names: list[str]) -> list[str]:
        return known_trackers(names)

    @property
    def tracker_names(self) -> list[str]:
        return tracker_names(self.trackers, self.use_wandb)

    @property
    def metrics_file(self) -> Path:
        return Path(self.metrics_path or Path(self.log_dir) / "metrics.jsonl")


class OriginalSettings(Section):
    """Settings of the original's ways of starting vLLM and of its ranks."""

    vllm_port: int = Field(9001, ge=1, le=65535, description="port of the default server URL")
    vllm_restart_interval: int = Field(
        3, ge=1, description="older name of publish_every; used when that one is not given"
    )
    vllm_gpu: int | None = Field(
        None, ge=0, description="GPU of the server that atropos-grpo-run starts"
    )
    vllm_gpu_memory_utilization: float = Field(
        0.45, gt=0, le=1, description="share of its memory, for atropos-grpo-run"
    )
    max_model_len: int = Field(4096, ge=2, description="of that server, in tokens")
    vllm_config_path: str | None = Field(
        None, description="where shared_memory publishing describes its tensors"
    )
    single_copy: bool = Field(
        False, description="had no effect in the original; refused if set"
    )
    debug_loading: bool = Field(
        False, description="print every published tensor and its shape"
    )
    trainer_rank: int = Field(
        0, ge=0, description="rank of this process; under torchrun its RANK counts"
    )
    world_size: int = Field(
        1, ge=1, description="trainer processes; under torchrun its WORLD_SIZE counts"
    )
    init_method: str = Field(
        "env://", description="where ranks meet, in the form of torch.distributed"
    )
    num_inference_nodes: int = Field(
        0,
        ge=0,
        description="accepted for the original's sake, which did not use it either; servers are"
        " named by inference_urls, or started by atropos-launch",
    )
