"""Command line and environment of every process of a plan. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from atroposlib.processes import ProcessSpec
from atroposlib.quickstart.recipes import QuickstartPlan, ServingEngine
from atroposlib.utils.models import weight_folders

MAX_THREADS = 8  # more threads only slow a model of 135 M parameters down


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
        "NO_PROXY": "127.0.0.1,localhost",  # all connections are local
        "PYTHONUNBUFFERED": "1",
    }


def processes(plan: QuickstartPlan) -> tuple[ProcessSpec, ...]:
    """Return all processes in the order of their start."""
    server = local_server if plan.options.engine is ServingEngine.LOCAL else vllm_server
    return (api(plan), server(plan), trainer(plan), environment(plan))


def api(plan: QuickstartPlan) -> ProcessSpec:
    return ProcessSpec(
        name="api",
        argv=(sys.executable, "-m", "atroposlib.cli.run_api")
        + ("--host", "127.0.0.1", "--port", str(plan.api_port))
        + ("--data-dir", str(plan.options.out / "api")),
        env=thread_env(1),
        cwd=plan.repo,
        health_url=f"{plan.api_url}/health",
        ready_within_s=60.0,
        restartable=True,
    )


def local_server(plan: QuickstartPlan) -> ProcessSpec:
    return ProcessSpec(
        name="inference",
        argv=(sys.executable, "-m", "atroposlib.inference")
        + ("--model", str(plan.serve_dir), "--host", "127.0.0.1")
        + ("--port", str(plan.server_port), "--seed", str(plan.options.seed))
        + ("--dtype", plan.dtype),
        env={**thread_env(plan.cores), weight_folders.VARIABLE: str(plan.checkpoints)},
        cwd=plan.repo,
        health_url=f"{plan.server_url}/health",
        ready_within_s=180.0,
    )


def vllm_server(plan: QuickstartPlan) -> ProcessSpec:
    recipe = plan.recipe
    return ProcessSpec(
        name="inference",
        argv=(plan.engine_python, "-m", "vllm.entrypoints.openai.api_server")
        + ("--model", str(plan.serve_dir), "--served-model-name", str(plan.model_dir))
        + ("--host", "127.0.0.1", "--port", str(plan.server_port))
        + ("--dtype", plan.dtype, "--enforce-eager", "--enable-scale-out")
        + ("--max-model-len", str(max(256, recipe.seq_len)))
        + ("--max-num-seqs", str(min(256, recipe.sequences_per_step)))
        # Logprobs of the sampling distribution, after temperature, as in the trainer.
        + ("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm")
        + ("--seed", str(plan.options.seed)),
        env={
            **thread_env(plan.cores),
            "VLLM_SERVER_DEV_MODE": "1",  # opens pause, reload and version routes
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # default: a core of two is reserved
            "VLLM_NO_USAGE_STATS": "1",
        },
        cwd=plan.repo,
        health_url=f"{plan.server_url}/health",
        ready_within_s=300.0,
    )


def publisher(plan: QuickstartPlan) -> str:
    """Memory of this machine, which vLLM without our worker extension does not take."""
    return "shared_memory" if plan.options.engine is ServingEngine.LOCAL else "disk"


def trainer(plan: QuickstartPlan) -> ProcessSpec:
    recipe = plan.recipe
    return ProcessSpec(
        name="trainer",
        argv=(sys.executable, "-m", "example_trainer.grpo")
        + ("--model-name", str(plan.model_dir), "--seed", str(plan.options.seed))
        + ("--atropos-url", plan.api_url, "--inference-urls", plan.server_url)
        + ("--training-steps", str(recipe.steps), "--seq-len", str(recipe.seq_len))
        + ("--batch-size", str(recipe.group_size))
        + ("--gradient-accumulation-steps", str(recipe.groups_per_step))
        + ("--max-tokens-per-microbatch", str(max(recipe.microbatch_tokens, recipe.seq_len)))
        + ("--dtype", plan.dtype, "--weight-publisher", publisher(plan))
        + ("--optimizer", "adamw", "--lr", str(recipe.learning_rate))
        + ("--lr-decay-ratio", str(recipe.lr_decay_ratio))
        + ("--adam-beta2", str(recipe.adam_beta2), "--weight-decay", "0.0")
        + ("--clip-eps", "0.2", "--clip-eps-high", str(recipe.clip_eps_high))
        + ("--entropy-coef", str(recipe.entropy_coef))
        + ("--ppo-epochs", str(recipe.ppo_epochs))
        + ("--save-path", str(plan.checkpoints), "--checkpoint-interval", "0")
        # A run of minutes starts from the beginning after a crash: no time is spent on
        # checkpoints.
        + ("--recover-mode", "disabled")
        # Two rows show a stale server as well as more; every batch is compared anyway.
        + ("--check-rows", "2", "--check-every", str(recipe.steps_per_check))
        + ("--metrics-path", str(plan.metrics_path))
        + plan.options.passed_on("trainer"),
        env=thread_env(plan.cores),
        cwd=plan.repo,
    )


def environment(plan: QuickstartPlan) -> ProcessSpec:
    recipe = plan.recipe
    return ProcessSpec(
        name="environment",
        argv=(sys.executable, recipe.env_script, "serve")
        + ("--env.rollout_server_url", plan.api_url)
        + ("--env.tokenizer_name", str(plan.model_dir))
        + ("--env.seed", str(plan.options.seed))
        + ("--env.group_size", str(recipe.group_size))
        + ("--env.max_token_length", str(recipe.seq_len))
        + ("--env.total_steps", str(recipe.steps))
        # A batch is generated while none is trained: environment and trainer alternate.
        + ("--env.max_batches_offpolicy", "1")
        + ("--env.max_num_workers", str(recipe.groups_per_step))
        + ("--env.ensure_scores_are_not_same", str(recipe.ensure_scores_are_not_same))
        + ("--env.steps_per_eval", str(recipe.steps_per_check))
        + ("--env.eval_at_start", "true", "--env.eval_at_end", "true")
        + ("--env.data_dir_to_save_evals", str(plan.heldout_dir))
        + ("--env.metrics_path", str(plan.options.out / "environment.jsonl"))
        + ("--env.use_wandb", "false")
        + ("--openai.base_url", f"{plan.server_url}/v1", "--openai.api_key", "none")
        + ("--openai.model_name", str(plan.model_dir), "--openai.server_type", "vllm")
        + plan.options.passed_on("env"),
        env=thread_env(1),
        cwd=plan.repo if plan.options.environment is None else Path.cwd(),
        restartable=True,
    )


def commands_text(plan: QuickstartPlan, specs: Iterable[ProcessSpec]) -> str:
    """Text of commands.txt: how to start each process by hand, during or after the quickstart."""
    lines = [
        "# Every process of this run, as a line for a POSIX shell.",
        "# The api and the environment may be restarted by hand while the run goes on;",
        "# the quickstart waits for them for "
        f"{plan.options.restart_grace_s:.0f} s (--restart-grace).",
    ]
    for spec in specs:
        lines += ["", f"# {spec.name}", spec.shell_line()]
    return "\n".join(lines) + "\n"
