"""``atropos-grpo-run``: start an inference server and the trainer with a single command.

    atropos-grpo-run --model Qwen/Qwen2.5-1.5B-Instruct --vllm-gpu 1 --training-steps 100

It takes the flags of ``atropos-grpo``. vLLM is started if it is installed (``--inference-
engine`` overrides it), else the local server, on ``--vllm-port``; it ends with the trainer, on
success and on failure. The rollout API and environments are started separately, or all
together by ``atropos-launch``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from atroposlib.errors import ConfigError
from atroposlib.processes import Children, ProcessSpec, StopRequest, Supervisor, answers
from example_trainer.launch.local import exit_status
from example_trainer.launch.servers import ServerCommand, choose_engine
from example_trainer.settings.args import parse_args
from example_trainer.settings.weights import ServingSettings

PROG = "atropos-grpo-run"
SERVER = "inference"
READY_TIMEOUT_S = 900.0  # a large model, read from a slow disk


def main(argv: Sequence[str] | None = None) -> int:
    """Return the trainer's status; 1 if the server did not start, 2 on invalid settings."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_status(PROG, lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    cfg = parse_args(words, PROG)
    stop = StopRequest()
    stop.listen()
    spec = server_process(cfg)
    with Children(Path(cfg.log_dir), stop) as children:
        start(spec, children, stop)
        from example_trainer import grpo  # loads torch

        return grpo.main([*words, "--inference-urls", cfg.servers[0]])


def server_process(cfg: ServingSettings) -> ProcessSpec:
    """Return the server of these settings; ConfigError if they name a running server."""
    if cfg.inference_urls is not None:
        raise ConfigError("inference_urls names servers that run already: use atropos-grpo")
    engine = choose_engine(cfg.inference_engine)
    on_gpu = engine != "local"
    server = ServerCommand(
        engine=engine,
        model=cfg.model_name,
        host="127.0.0.1",
        port=cfg.vllm_port,
        gpus=None if cfg.vllm_gpu is None else str(cfg.vllm_gpu),
        memory_share=cfg.vllm_gpu_memory_utilization if on_gpu else None,
        max_model_len=cfg.max_model_len if on_gpu else None,
        dtype=cfg.dtype,
        lora_rank=cfg.published_lora_rank,
        seed=cfg.seed,
    )
    return ProcessSpec(
        name=SERVER,
        argv=server.argv,
        env={"PYTHONUNBUFFERED": "1", **server.environment},
        cwd=Path.cwd(),
        health_url=f"{cfg.servers[0]}/health",
        ready_within_s=READY_TIMEOUT_S,
    )


def start(spec: ProcessSpec, children: Children, stop: StopRequest) -> None:
    """Start the server and wait until it answers.

    Raises ConfigError if another process answers at its port, RunFailed if it does not start.
    """
    if answers(str(spec.health_url)):
        raise ConfigError(
            f"{spec.health_url} answers already; name another --vllm-port, or use"
            " atropos-grpo with --inference-urls"
        )
    Supervisor([spec], children, stop).start_servers()


if __name__ == "__main__":
    sys.exit(main())
