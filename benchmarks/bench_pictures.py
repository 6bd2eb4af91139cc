"""Whether a model of random weights learns to look: rewards for the colour of a drawing.

    python benchmarks/bench_pictures.py --seed 0            # and with --blank, the control

Local engine and trainer in the same process, on ``environments/library/pictures.py`` with ``source one``.
A short supervised warm-up, of which a share of the colours is right, teaches the form of a reply; then
rewards alone.
The baseline is the same run on white pictures, where a quarter of the answers is right by chance.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from atroposlib.environments.library.pictures import (
    COLOURS,
    is_right,
    make_one,
    picture,
    text as question,
)
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.request import GenerationRequest, Output, SamplingParams
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.engine.weights import copy_tensors
from atroposlib.testing.tiny_vision import FAMILIES, write_tiny_vision_model
from atroposlib.wire import MASKED, MASKED_LOGPROB, ScoredData
from atroposlib.wire.images import picture_bytes
from example_trainer.learner import Learner
from example_trainer.settings.config import TrainingConfig

WAIT_S = 600.0
WARM_ROWS = 32  # rows of a step of the warm-up
REPLY_TOKENS = 8
HELD_OUT = 128

Task = dict[str, Any]


class Drawings:
    """Tasks of a seed, and their prompts as the model's processor makes them."""

    def __init__(self, learner: Learner, seed: int, blank: bool) -> None:
        self._rng, self._blank = random.Random(seed), blank
        self._reader, self._tokenizer = learner.policy.pictures, learner.policy.tokenizer

    def take(self, count: int) -> list[Task]:
        return [{**make_one(self._rng), "blank": self._blank} for _ in range(count)]

    def prompt(self, task: Task) -> tuple[list[int], Any, str]:
        """Token ids, pictures for the engine, and the data URL for the row."""
        assert self._reader is not None
        url = picture(task)
        parts = [{"type": "image"}, {"type": "text", "text": question(task)}]
        chat = [{"role": "user", "content": parts}]
        text = self._reader.render(chat, add_generation_prompt=True)
        return (*self._reader.prompt(text, [picture_bytes(url)]), url)

    def example(self, task: Task, share: float) -> ScoredData:
        """A row that is trained by cross entropy: the right colour with this share, else any."""
        ids, _, url = self.prompt(task)
        right = self._rng.random() < share
        colour = task["answer"] if right else self._rng.choice([*COLOURS])
        reply = self._tokenizer.encode(f"{colour}<|end|>", add_special_tokens=False)
        return ScoredData(
            tokens=[ids + reply],
            masks=[[MASKED] * len(ids) + reply],
            scores=[1.0],
            images=[[url]],
        )

    def score(self, task: Task, output: Output) -> float:
        text = self._tokenizer.decode(output.tokens, skip_special_tokens=True)
        return float(is_right(task, text))

    def sample(
        self, engine: Engine, tasks: Sequence[Task], count: int
    ) -> tuple[list[ScoredData], float]:
        """Groups of ``count`` samples, and their mean score."""
        asked = []
        for task in tasks:
            ids, pictures, url = self.prompt(task)
            params = SamplingParams(max_tokens=REPLY_TOKENS)
            request = GenerationRequest(
                prompt_ids=ids, pictures=pictures, n=count, params=params
            )
            engine.submit(request)
            asked.append((task, ids, url, request))
        groups = []
        for number, (task, ids, url, request) in enumerate(asked):
            outputs = request.future.result(WAIT_S).outputs
            groups.append(
                ScoredData(
                    tokens=[ids + output.tokens for output in outputs],
                    masks=[[MASKED] * len(ids) + output.tokens for output in outputs],
                    scores=[self.score(task, output) for output in outputs],
                    inference_logprobs=[
                        [MASKED_LOGPROB] * len(ids) + output.logprobs for output in outputs
                    ],
                    images=[[url]] * len(outputs),
                    generation_params={"temperature": 1.0},
                    group_id=f"{number}",
                )
            )
        scores = [score for group in groups for score in group.scores]
        return groups, sum(scores) / len(scores)


def run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    write_tiny_vision_model(directory / "random", options.family, seed=options.seed)

    def learner(name: str, **settings: Any) -> Learner:
        paths = {"save_path": str(directory / "saved"), "log_dir": str(directory / "logs")}
        model = {"model_name": str(directory / name), "seed": options.seed, "device": "cpu"}
        optimizer = {"optimizer": "adamw", "adam_beta2": 0.95}
        return Learner(TrainingConfig(**model, **paths, **optimizer, **settings))

    warm = learner("random", loss="cross_entropy", lr=3e-3, training_steps=options.warm)
    drawings = Drawings(warm, options.seed, options.blank)
    for _ in range(options.warm):
        tasks = drawings.take(WARM_ROWS)
        loss = warm.step([drawings.example(task, options.share) for task in tasks])["loss"]
    warm.save(directory / "warm")
    ours = learner("warm", lr=options.lr, training_steps=options.steps)
    engine = Engine(load_model(str(directory / "warm")), EngineLimits(), seed=options.seed)
    engine.start()
    held_out, rewards, started = drawings.take(HELD_OUT), [], time.monotonic()
    before = drawings.sample(engine, held_out, 1)[1]
    print(f"warm-up: loss {loss:.3f}, held out {before:.3f}", file=sys.stderr, flush=True)
    for step in range(1, options.steps + 1):
        groups, reward = drawings.sample(engine, drawings.take(options.groups), options.n)
        rewards.append(round(reward, 3))
        ours.step(groups)
        weights = ours.policy.model.state_dict()
        engine.replace_weights(lambda model: copy_tensors(model, weights), step)
        print(f"step {step}: reward {reward:.3f}", file=sys.stderr, flush=True)
    after = drawings.sample(engine, held_out, 1)[1]
    engine.close()
    return {
        **vars(options),
        "warm_loss": round(loss, 4),
        "before": round(before, 3),
        "after": round(after, 3),
        "rewards": rewards,
        "seconds": round(time.monotonic() - started),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--family", choices=FAMILIES, default="llava")
    add("--seed", type=int, default=0)
    add("--blank", action="store_true", help="white pictures, the control")
    add("--warm", type=int, default=60, help="supervised steps (default %(default)s)")
    add(
        "--share",
        type=float,
        default=0.25,
        help="right colours in its rows (default %(default)s)",
    )
    add("--steps", type=int, default=80, help="steps on rewards (default %(default)s)")
    add("--groups", type=int, default=16, help="of a step (default %(default)s)")
    add("--n", type=int, default=8, help="samples of a group (default %(default)s)")
    add("--lr", type=float, default=1e-3, help="of the rewards (default %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(run(options, Path(directory))))


if __name__ == "__main__":
    main()
