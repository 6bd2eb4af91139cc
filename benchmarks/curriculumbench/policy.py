"""Tiny policy in the process of the study: sampling, updates, and sessions for functions of environments."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from atroposlib.wire import ids


class Row(NamedTuple):
    """A reply with the weight of its logprobs."""

    prompt: list[int]
    reply: list[int]
    weight: float


@dataclass
class Policy:
    """The tiny model with its tokenizer and optimizer."""

    model: Any
    tokenizer: Any
    learning_rate: float
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.learning_rate, weight_decay=0.0
        )

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        rendered = self.tokenizer.apply_chat_template(
            [*messages], add_generation_prompt=True, tokenize=False
        )
        return list(self.tokenizer.encode(rendered, add_special_tokens=False))

    def reply_ids(self, text: str) -> list[int]:
        return [
            *self.tokenizer.encode(text, add_special_tokens=False),
            self.tokenizer.eos_token_id,
        ]

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[list[int]], max_new: int, generator: torch.Generator | None
    ) -> list[list[int]]:
        """A reply to each prompt, with the end token if it came.

        ``generator``: of samples at temperature 1; None: greedy replies.
        """
        distinct = sorted({tuple(prompt) for prompt in prompts})  # a group shares its prompt
        which_B = torch.tensor([distinct.index(tuple(prompt)) for prompt in prompts])
        width, pad = max(map(len, distinct)), self.tokenizer.pad_token_id
        ids_PT = torch.tensor([[pad] * (width - len(p)) + [*p] for p in distinct])  # (P, T)
        mask_PT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in distinct])
        out = self.model(
            ids_PT,
            attention_mask=mask_PT,
            position_ids=(mask_PT.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=1,
        )
        past = out.past_key_values
        past.batch_select_indices(which_B)
        probs_BV, mask_BT = out.logits[which_B, -1].softmax(-1), mask_PT[which_B]
        done, replies = [False] * len(prompts), [[] for _ in prompts]
        for place in range(max_new):
            if generator is None:
                chosen = probs_BV.argmax(-1, keepdim=True)  # (B, 1)
            else:
                chosen = torch.multinomial(probs_BV, 1, generator=generator)  # (B, 1)
            for b, token in enumerate(chosen[:, 0].tolist()):
                if not done[b]:
                    replies[b].append(token)
                    done[b] = token == self.tokenizer.eos_token_id
            if all(done) or place == max_new - 1:
                break
            mask_BT = torch.cat([mask_BT, torch.ones_like(chosen)], 1)
            out = self.model(
                chosen,
                attention_mask=mask_BT,
                position_ids=mask_BT.sum(1, keepdim=True) - 1,
                past_key_values=past,
            )
            past, probs_BV = out.past_key_values, out.logits[:, -1].softmax(-1)
        return replies

    def text(self, reply: list[int]) -> str:
        return str(self.tokenizer.decode(reply, skip_special_tokens=True))

    def update(self, rows: Sequence[Row]) -> None:
        """A step on ``rows``: the weighted mean of logprobs goes up."""
        rows = [row for row in rows if row.weight and row.reply]
        width = max(len(row.prompt) + len(row.reply) for row in rows)
        rows_ids, weights = [], []
        for row in rows:
            rest = width - len(row.prompt) - len(row.reply)
            rows_ids.append([*row.prompt, *row.reply, *[self.tokenizer.pad_token_id] * rest])
            weights.append(
                [0.0] * len(row.prompt) + [row.weight] * len(row.reply) + [0.0] * rest
            )
        ids_BT = torch.tensor(rows_ids)
        weights_BT = torch.tensor(weights)[:, 1:]
        logits_BTV = self.model(ids_BT).logits[:, :-1]
        logprobs_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None])[..., 0]
        loss = -(logprobs_BT * weights_BT).sum() / (weights_BT != 0).sum()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


@dataclass
class PolicySession:
    """Session of a rollout on the policy; keeps the tokens of its turns."""

    sampler: JointSampler
    turns: list[tuple[list[int], list[int]]] = field(default_factory=list)  # prompt, reply

    async def chat_completion(self, *, messages: Sequence[Any], **_: Any) -> Any:
        prompt = self.sampler.policy.prompt_ids(messages)
        reply = await self.sampler.reply_to(prompt)
        self.turns.append((prompt, reply))
        ended = reply[-1:] == [self.sampler.policy.tokenizer.eos_token_id]
        message = SimpleNamespace(content=self.sampler.policy.text(reply), tool_calls=None)
        choice = SimpleNamespace(message=message, finish_reason="stop" if ended else "length")
        return SimpleNamespace(id=ids.source().hex, choices=[choice], usage=None)


class JointSampler:
    """Samples the next turns of many rollouts at once, when all that go on wait for theirs."""

    def __init__(
        self, policy: Policy, max_new: int, generator: torch.Generator | None
    ) -> None:
        self.policy, self.max_new, self.generator = policy, max_new, generator
        self.waiting: list[tuple[list[int], asyncio.Future[list[int]]]] = []

    async def reply_to(self, prompt: list[int]) -> list[int]:
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.waiting.append((prompt, future))
        return await future

    async def run(self, rollouts: Sequence[Coroutine[Any, Any, float]]) -> list[float]:
        """The scores of ``rollouts``."""
        begun = [asyncio.ensure_future(rollout) for rollout in rollouts]
        while going_on := sum(not rollout.done() for rollout in begun):
            if len(self.waiting) == going_on:
                waiting, self.waiting = self.waiting, []
                prompts = [prompt for prompt, _ in waiting]
                replies = self.policy.sample(prompts, self.max_new, self.generator)
                for (_, future), reply in zip(waiting, replies):
                    future.set_result(reply)
            await asyncio.sleep(0)
        return [rollout.result() for rollout in begun]
