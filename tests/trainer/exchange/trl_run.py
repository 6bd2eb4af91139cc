"""A run of TRL on the rollout API: what each batch held and what TRL computed with, a line each.

python -m tests.trainer.exchange.trl_run MODEL OUT API SERVER STEPS [CHECKPOINT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig

from atroposlib.wire import MASKED_LOGPROB, MASKED_VERSION
from example_trainer.exchange.trl import QueueTrainer
from tests.trainer.environment import GROUP_SIZE, PROMPTS

SEQUENCES = GROUP_SIZE * len(PROMPTS)


class Recorded(QueueTrainer):
    """Writes the batch and TRL's tensors of it to ``OUT/batches.jsonl``."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        link = self.link
        assert link is not None and link.batch is not None
        kept = (output["completion_mask"] * output["tool_mask"]).bool()
        ids, old = output["completion_ids"], output["old_per_token_logps"]
        with torch.no_grad():
            whole = torch.cat([output["prompt_ids"], ids], dim=1)
            mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
            now, _, _ = self._get_per_token_logps_and_entropies(
                self.model, whole, mask, ids.shape[1]
            )
        groups = link.batch.batch or []
        versions = {v for group in groups for row in group.versions or [] for v in row}
        line = {
            "fresh": versions <= {MASKED_VERSION, link.state.version},
            "batch_no": link.batch.batch_no,
            "keys": [group.idempotency_key for group in groups],
            "recorded": [
                [one for one in row if one != MASKED_LOGPROB]
                for group in groups
                for row in group.inference_logprobs or []
            ],
            "scores": [one for group in groups for one in group.scores],
            "old": [row[m].tolist() for row, m in zip(old, kept)],
            "now": [row[m].tolist() for row, m in zip(now, kept)],
            "advantages": output["advantages"].tolist(),
        }
        with (Path(self.args.output_dir) / "batches.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return output


def arguments(out: Path, steps: int, **more: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(out),
        "max_steps": steps,
        "per_device_train_batch_size": SEQUENCES,
        "gradient_accumulation_steps": 1,
        "num_generations": GROUP_SIZE,
        "learning_rate": 1e-3,
        "beta": 0.0,
        "save_strategy": "steps",
        "save_steps": 5,
        "save_total_limit": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "temperature": 1.0,
        "shuffle_dataset": False,
    }
    return GRPOConfig(**{**settings, **more})


def main(
    model: str, out: str, api: str, server: str, steps: str, checkpoint: str = ""
) -> None:
    torch.set_num_threads(1)
    Path(out).mkdir(parents=True, exist_ok=True)
    settings = {"atropos_url": api, "inference_urls": [server], "seq_len": 64}
    trainer = Recorded(model, arguments(Path(out), int(steps)), settings=settings)
    trainer.train(resume_from_checkpoint=checkpoint or None)


if __name__ == "__main__":
    main(*sys.argv[1:])
