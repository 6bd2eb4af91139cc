"""Speed of `atropos data rescore`: rollouts per minute and core, for a plain reward.

python -m benchmarks.bench_rescore [--groups 2500] [--out FILE.json]

A run of groups of 8 rollouts with messages of 400 characters and 96 tokens is written with its
index, in batches of 8 groups; nothing of that is measured. The figure is rollouts per minute of
processor time of the command and its process: payloads are read, the reward is called, advantages
are estimated, rows and report are written. The baseline is the bare call of the reward.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.indexer import Indexer
from atroposlib.api.archive.load import EVERYTHING, put_files
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.travel import rescore
from atroposlib.travel.stored_reward import load_stored_reward

ROWS = 8
PROMPT_TOKENS, REPLY_TOKENS = 32, 64
REWARD = """def reward(completion, target):
    return 1.0 if completion.rsplit(" ", 1)[-1] == str(target) else 0.0
"""


def group_line(number: int) -> str:
    """A group as a line of a file."""
    prompt = list(range(PROMPT_TOKENS))
    tokens, masks, messages, scores = [], [], [], []
    for row in range(ROWS):
        reply = [(number * 7 + row * 13 + k) % 1000 for k in range(REPLY_TOKENS)]
        tokens.append([*prompt, *reply])
        masks.append([-100] * PROMPT_TOKENS + reply)
        answer = number if row % 2 else number + row
        text = f"{'some words of reasoning ' * 12}the answer is {answer}"
        messages.append(
            [
                {"role": "user", "content": f"{'words of a question ' * 5}{number}"},
                {"role": "assistant", "content": text},
            ]
        )
        scores.append(float(row % 3 == 0))
    group = {"tokens": tokens, "masks": masks, "messages": messages, "scores": scores}
    about = {"item": f"task{number}", "env": "sums", "target": number}
    key = f"key{number}"
    more = {"group_id": f"task{number}@0", "metadata": about, "idempotency_key": key}
    return json.dumps({**group, **more}) + "\n"


def write_run(folder: Path, groups: int) -> None:
    """Write a data directory with its index."""
    file = folder / "groups.jsonl"
    file.write_text("".join(map(group_line, range(groups))))
    store = SqliteStore(folder / "queue", EVERYTHING, synchronous="OFF", archive_bytes=2**40)
    put_files(store, [file])
    indexer = Indexer(Index(store.archive), store)
    indexer.complete(False)
    indexer.index.change("UPDATE rollout SET batch_no = gid / 8, state = 'acked'")
    indexer.close()
    store.close()


def processor_s() -> float:
    """Processor time of this process and its ended children, in seconds."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=2500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    n = options.groups * ROWS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder, options.groups)
        (folder / "plain.py").write_text(REWARD)
        words = [str(folder), "--reward", str(folder / "plain.py")]
        words += ["--out", str(folder / "a.jsonl"), "--html", str(folder / "a.html")]
        spent_s, began = processor_s(), time.monotonic()
        rescore.main(words)
        spent_s, wall_s = processor_s() - spent_s, time.monotonic() - began
        bare = load_stored_reward(str(folder / "plain.py")).function
    text = "some words of reasoning " * 12 + "the answer is 5"
    began = time.process_time()
    for target in range(n):
        bare(text, target)
    bare_s = time.process_time() - began
    figures = {
        "rollouts": n,
        "processor_s": round(spent_s, 2),
        "wall_s": round(wall_s, 2),
        "per_minute_and_core": round(n / spent_s * 60),
        "bare_calls_share": round(bare_s / spent_s, 4),
    }
    print(json.dumps(figures))
    if options.out:
        options.out.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
