"""A quickstart as a plan of the launcher. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from atroposlib.processes import ProcessSpec
from example_trainer.launch.plan import TRAINER_SETTINGS, Plan
from example_trainer.quickstart.recipes import QuickstartPlan, ServingEngine
from example_trainer.settings.files import parse_override

MAX_THREADS = 8  # more threads only slow a model of 135 M parameters down
# The processes in the order of the launcher: names of their logs and in lines for people.
NAMES = ("api", "inference", "environment", "trainer")
BY_HAND = ("api", "environment")  # may be restarted by hand


def thread_env(threads: int) -> dict[str, str]:
    """Thread settings of a process. Idle threads must sleep: server and trainer alternate.

    Spinning OpenMP threads of the waiting process would take the cores of the working process.
    """
    count = str(max(1, min(threads, MAX_THREADS)))
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
        # glibc keeps freed memory: torch allocates hundreds of MB per step, a page fault per 4 KB.
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**33),
        "HF_HUB_OFFLINE": "1",
    }


def launch_plan(start: QuickstartPlan) -> Plan:
    """Return the plan of all processes.

    Raises:
        ConfigError: the name of a setting of the trainer cannot be used.
    """
    options = start.options
    given = [parse_override(f"{k.replace('-', '_')}={v}") for k, v in options.trainer_settings]
    own = {entry.key: entry.value for entry in given}
    plan = Plan.model_validate(
        {
            "name": "quickstart",
            "out": str(options.out),
            "api": {"port": start.api_port, "env": thread_env(1)},
            "inference": _inference(start),
            "environments": [_environment(start)],
            "trainer": {
                "settings": {**_trainer(start), **own},
                "env": thread_env(start.cores),
            },
        }
    )
    plan.places.update({f"{TRAINER_SETTINGS}{key}": f"--trainer.{key}" for key in own})
    return plan


def _inference(start: QuickstartPlan) -> dict[str, Any]:
    section: dict[str, Any] = {
        "engine": start.options.engine.value,
        "model": str(start.serve_dir),
        "port": start.server_port,
        "dtype": start.dtype,
        "env": thread_env(start.cores),
        "ready_within_s": 300.0,
    }
    if start.options.engine is ServingEngine.LOCAL:
        return section
    recipe = start.recipe
    section["env"] |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # default: a core of two is reserved
        "VLLM_NO_USAGE_STATS": "1",
    }
    return section | {
        "python": start.engine_python,
        "float32_head": False,
        "max_model_len": max(256, recipe.seq_len),
        "args": [
            "--enforce-eager",
            "--enable-scale-out",
            f"--served-model-name={start.model_dir}",
            f"--max-num-seqs={min(256, recipe.sequences_per_step)}",
        ],
    }


def publisher(start: QuickstartPlan) -> str:
    """Memory of this machine, which vLLM without our worker extension does not take."""
    return "shared_memory" if start.options.engine is ServingEngine.LOCAL else "disk"


def _trainer(start: QuickstartPlan) -> dict[str, Any]:
    recipe = start.recipe
    return {
        "model_name": str(start.model_dir),
        "seed": start.options.seed,
        "training_steps": recipe.steps,
        "seq_len": recipe.seq_len,
        "batch_size": recipe.group_size,
        "gradient_accumulation_steps": recipe.groups_per_step,
        "max_tokens_per_microbatch": max(recipe.microbatch_tokens, recipe.seq_len),
        "dtype": start.dtype,
        "weight_publisher": publisher(start),
        "optimizer": "adamw",
        "lr": recipe.learning_rate,
        "lr_decay_ratio": recipe.lr_decay_ratio,
        "adam_beta2": recipe.adam_beta2,
        "weight_decay": 0.0,
        "clip_eps": 0.2,
        "clip_eps_high": recipe.clip_eps_high,
        "entropy_coef": recipe.entropy_coef,
        "ppo_epochs": recipe.ppo_epochs,
        "checkpoint_interval": 0,
        # A run of minutes starts from the beginning after a crash: no time is spent on
        # checkpoints.
        "recover_mode": "disabled",
        # Two rows show a stale server as well as more; every batch is compared anyway.
        "check_rows": 2,
        "check_every": recipe.steps_per_check,
    }


def _environment(start: QuickstartPlan) -> dict[str, Any]:
    recipe = start.recipe
    settings = {
        "seed": start.options.seed,
        "group_size": recipe.group_size,
        "max_token_length": recipe.seq_len,
        "total_steps": recipe.steps,
        # A batch is generated while none is trained: environment and trainer alternate.
        "max_batches_offpolicy": 1,
        "max_num_workers": recipe.groups_per_step,
        "ensure_scores_are_not_same": recipe.ensure_scores_are_not_same,
        "steps_per_eval": recipe.steps_per_check,
        "eval_at_start": True,
        "eval_at_end": True,
        "data_dir_to_save_evals": str(start.heldout_dir),
        "metrics_path": str(start.options.out / "environment.jsonl"),
        "use_wandb": False,
    }
    return {
        "script": str(start.repo / recipe.env_script),
        "config": {"env": settings, "openai": {"model_name": str(start.model_dir)}},
        "args": list(start.options.passed_on("env")),
        "env": thread_env(1),
    }


def with_names(specs: Iterable[ProcessSpec]) -> list[ProcessSpec]:
    """The launcher's processes under the names of the quickstart."""
    return [
        replace(spec, name=name, restartable=name in BY_HAND)
        for name, spec in zip(NAMES, specs)
    ]


def commands_text(start: QuickstartPlan, specs: Iterable[ProcessSpec]) -> str:
    """Text of commands.txt: how to start each process by hand, during or after the quickstart."""
    lines = [
        "# Every process of this run, as a line for a POSIX shell.",
        "# The api and the environment may be restarted by hand while the run goes on;",
        "# the quickstart waits for them for "
        f"{start.options.restart_grace_s:.0f} s (--restart-grace).",
    ]
    for spec in specs:
        lines += ["", f"# {spec.name}", spec.shell_line()]
    return "\n".join(lines) + "\n"
