"""Ways to take an optimizer step on the same rows. Each returns the mean loss per token.

All take the step of PPO on the first pass over a batch (ratio 1, clip 0.2), a mean over the
tokens of the batch, AdamW with float32 weights, bfloat16 products on CUDA, entropy as a
figure without a gradient.

    shared        ours: packs, a prompt that rows share computed once
    packed        ours: packs of plain rows
    padded        ours: a line per row, logits in chunks
    full logits   padded, transformers' own forward, float32 logits of every position,
                  log_softmax and gather: what a trainer written in an afternoon does
    trl           trl.GRPOTrainer.compute_loss on the same rows, in the same minibatches;
                  generation, rewards and its data loader are left out
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from example_trainer import losses
from example_trainer.data.packing import padding_share
from example_trainer.data.rows import Row
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.model.adapter import ALL_LINEAR
from example_trainer.model.scoring import pad_to_tensor
from example_trainer.settings.config import TrainingConfig
from trainerbench.workload import Workload, write_model


class Contestant:
    """A model, its optimizer, and the padding share of its last step."""

    model: Any
    padding = 0.0

    def __init__(self, load: Workload) -> None:
        self.load = load
        self.device = torch.device(load.device)

    def optimizer(self) -> torch.optim.Optimizer:
        fused = self.device.type == "cuda"
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.AdamW(trained, lr=1e-6, fused=fused)

    def backward(self, rows: list[Row]) -> float:
        """Leave the gradients of the mean loss in the parameters."""
        raise NotImplementedError


class Ours(Contestant):
    def __init__(
        self, load: Workload, packing: str, share: bool, dtype: str | None = None
    ) -> None:
        super().__init__(load)
        with tempfile.TemporaryDirectory() as scratch:
            self.cfg = TrainingConfig(
                model_name=load.model or str(write_model(Path(scratch), load)),
                init_from_scratch=not load.model,
                device=load.device,
                dtype=dtype,
                seq_len=load.seq_len,
                max_tokens_per_microbatch=load.budget,
                gradient_checkpointing=load.checkpointing,
                packing=packing,
                share_prefixes=share,
                lora=load.lora > 0,
                lora_r=load.lora or 16,
                lora_target_modules=[ALL_LINEAR] if load.lora else None,
                inference_urls=[],
            )
            # Only with ranks does the policy get its adapter; a single rank shards nothing.
            world = Ranks.single(load.device) if load.lora else None
            self.policy = loading.load_policy(self.cfg, world)
        assert self.policy.padded == (packing == "padded")
        self.model = self.policy.model
        self.loss_of = losses.get("grpo")

    def backward(self, rows: list[Row]) -> float:
        plans = self.policy.plan(rows)
        self.padding = padding_share(plans)
        tokens = sum(len(row.trained) for row in rows)
        advantages_R_T = [[row.reward] * len(row.trained) for row in rows]
        ones_R_T = [[1.0] * len(row.trained) for row in rows]
        total = 0.0
        for plan in plans:
            scores = self.policy.score(plan)
            advantages = pad_to_tensor(plan, advantages_R_T, self.device)
            weights = pad_to_tensor(plan, ones_R_T, self.device)
            old = scores.logprobs.detach()
            loss_sum, _ = self.loss_of(
                scores.logprobs, old, old, advantages, weights, self.cfg
            )
            torch.autograd.backward(loss_sum / tokens)
            total += float(loss_sum.detach())
        return total / tokens


class Padded(Contestant):
    """Takes rows in their order, as TRL does, each pass padded to its longest row."""

    def backward(self, rows: list[Row]) -> float:
        tokens, loss, computed = sum(len(row.trained) for row in rows), 0.0, 0
        for start in range(0, len(rows), self.load.rows_per_pass):
            some = rows[start : start + self.load.rows_per_pass]
            part, positions = self.backward_pass(some, tokens)
            loss, computed = loss + part, computed + positions
        self.padding = 1 - sum(len(row.tokens) for row in rows) / computed
        return loss

    def backward_pass(self, rows: list[Row], tokens: int) -> tuple[float, int]:
        """The part of some rows in a mean loss over ``tokens``, and the computed positions."""
        raise NotImplementedError


class FullLogits(Padded):
    def __init__(self, load: Workload) -> None:
        super().__init__(load)
        self.model = plain_model(load)

    def backward_pass(self, rows: list[Row], tokens: int) -> tuple[float, int]:
        ids, real = right_padded([row.tokens for row in rows], self.device)
        mask, _ = right_padded([_trained_flags(row) for row in rows], self.device)
        with autocast(self.device):
            logits = self.model(ids, attention_mask=real).logits
        logprobs = torch.log_softmax(logits[:, :-1].float(), -1)
        chosen = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
        with torch.no_grad():
            -(logprobs.exp() * logprobs).sum(-1)  # the entropy, as trainers log it
        advantages = torch.tensor([row.reward for row in rows], device=self.device)
        loss = (clip_gradients(chosen, advantages[:, None]) * mask[:, 1:]).sum() / tokens
        torch.autograd.backward(loss)
        return float(loss.detach()), ids.numel()


class Trl(Padded):
    def __init__(self, load: Workload) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        from atroposlib.testing.tiny import char_tokenizer

        super().__init__(load)
        self.scratch = tempfile.TemporaryDirectory()
        on_cuda = self.device.type == "cuda"
        self.trainer = GRPOTrainer(
            model=plain_model(load),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=self.scratch.name,
                use_cpu=not on_cuda,
                bf16=on_cuda,
                gradient_checkpointing=load.checkpointing,
                per_device_train_batch_size=load.rows_per_pass,
                num_generations=load.rows_per_pass,
                max_completion_length=load.longest,
                temperature=1.0,
                beta=0.0,
                loss_type="dapo",
                report_to="none",
            ),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * load.rows_per_pass),
            processing_class=char_tokenizer(),
        )
        self.model = self.trainer.model
        self.model.train()

    def backward_pass(self, rows: list[Row], tokens: int) -> tuple[float, int]:
        self.trainer.current_gradient_accumulation_steps = 1
        prompts = [row.tokens[: row.trained[0] + 1] for row in rows]
        prompt_ids, prompt_mask = right_padded(prompts, self.device)  # equal lengths
        completions = [row.tokens[row.trained[0] + 1 :] for row in rows]
        ids, mask = right_padded(completions, self.device)
        inputs = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": torch.tensor([row.reward for row in rows], device=self.device),
            "num_items_in_batch": torch.tensor(tokens, device=self.device),
        }
        loss = self.trainer.compute_loss(self.model, inputs)
        self.trainer.accelerator.backward(loss)
        return float(loss.detach()), prompt_ids.numel() + ids.numel()


CONTESTANTS: dict[str, Callable[[Workload], Contestant]] = {
    "shared": lambda load: Ours(load, "packed", share=True),
    "packed": lambda load: Ours(load, "packed", share=False),
    "padded": lambda load: Ours(load, "padded", share=False),
    "full logits": FullLogits,
    "trl": Trl,
}


def plain_model(load: Workload) -> Any:
    """The weights that ours starts from, behind transformers' own attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if load.model:
        made = AutoModelForCausalLM.from_pretrained(load.model, dtype=torch.float32)
    else:
        with tempfile.TemporaryDirectory() as scratch, torch.random.fork_rng():
            config = AutoConfig.from_pretrained(write_model(Path(scratch), load))
            torch.manual_seed(0)
            made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    made.to(load.device)
    if load.checkpointing:
        made.gradient_checkpointing_enable({"use_reentrant": False})
        made.train()
    return made


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def clip_gradients(logprobs: Tensor, advantages: Tensor) -> Tensor:
    ratio = (logprobs - logprobs.detach()).exp()
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def right_padded(lists: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Padded values and the mask of the values given, both (B, T)."""
    longest = max(map(len, lists))
    values = [[*row, *[0] * (longest - len(row))] for row in lists]
    real = [[int(t < len(row)) for t in range(longest)] for row in lists]
    return torch.tensor(values, device=device), torch.tensor(real, device=device)


def _trained_flags(row: Row) -> list[int]:
    flags = [0] * len(row.tokens)
    for j in row.trained:
        flags[j + 1] = 1
    return flags
