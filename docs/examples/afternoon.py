"""An afternoon with the tiny model, as commands: environments, a loss, a sweep, comparison, replay.

    python docs/examples/afternoon.py FOLDER [--steps 12] [--seeds 3]

Three environments of letters are written into FOLDER, and a loss. A sweep trains two learning rates
with some seeds; its runs are compared, their texts are read, and a changed reward is tried on what
they stored. Each command is printed with its seconds. Afterwards: atropos ui FOLDER/runs
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from atroposlib.testing.tiny import write_tiny_model

ENVIRONMENT = '''"""{about}"""

import itertools

from atroposlib.envs import environment

WORDS = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)]


@environment([{{"word": word}} for word in WORDS], temperature=1.0, max_tokens={tokens})
async def {name}(task, model):
    answer = await model.chat(task["word"])
    return {reward}


if __name__ == "__main__":
    {name}.cli()
'''
LETTER = "1.0 if answer[:1] == task['word'][{place}] else {part} * answer[:1].isalpha()"
ENVIRONMENTS = {
    "first": ("The first letter of a word.", 2, LETTER.format(place=0, part=0.1)),
    "last": ("The last letter of a word.", 2, LETTER.format(place=-1, part=0.1)),
    "whole": (
        "The word itself.",
        4,
        "sum(a == b for a, b in zip(answer, task['word'])) / len(task['word'])",
    ),
}
RUN = """
name: letters
out: runs
inference: {{engine: local}}
environments:
  - {{script: first.py, config: {{env: {{group_size: 8, inference_weight: 2}}}}}}
  - {{script: last.py, config: {{env: {{group_size: 8}}}}}}
  - {{script: whole.py, config: {{env: {{group_size: 8}}}}}}
trainer:
  settings:
    model_name: tiny
    device: cpu
    seq_len: 64
    batch_size: 64
    gradient_accumulation_steps: 1
    training_steps: {steps}
    loss: capped/capped.py:loss
sweep: {{lr: [1e-3, 6e-3], seed: {seeds}}}
"""
TEXTS = """
import sys
from atroposlib import load_rollouts
rows = load_rollouts(sys.argv[1], text=True, env="first")
print(len(rows), "rollouts;", "best:", max((row["reward"], row["answer"]) for row in rows))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_tiny_model(folder / "tiny")
    for name, (about, tokens, reward) in ENVIRONMENTS.items():
        code = ENVIRONMENT.format(name=name, about=about, tokens=tokens, reward=reward)
        (folder / f"{name}.py").write_text(code)
    seeds = list(range(options.seeds))
    (folder / "run.yaml").write_text(RUN.format(steps=options.steps, seeds=seeds))

    def call(*words: str) -> None:
        begun = time.monotonic()
        subprocess.run([sys.executable, *words], cwd=folder, check=True)
        print(f"--- {time.monotonic() - begun:.0f} s: {' '.join(words)}", flush=True)

    atropos = ("-m", "atroposlib.cli.atropos")
    slow, fast = "runs/lr=0.001,seed=0", "runs/lr=0.006,seed=0"
    call(*atropos, "loss", "new", "capped")
    call("-m", "pytest", "-q", "capped")
    call(*atropos, "run", "check", "run.yaml")
    call(*atropos, "run", "local", "run.yaml")
    call(*atropos, "run", "diff", slow, fast)
    call("-c", TEXTS, fast)
    call(*atropos, "data", "export", fast, "--to", "jsonl", "--out", "rollouts.jsonl")
    changed = (folder / "first.py").read_text().replace("0.1 *", "0.0 *")
    (folder / "changed.py").write_text(changed)
    call(*atropos, "env", "try", "changed.py", "--replay", fast)


if __name__ == "__main__":
    main()
