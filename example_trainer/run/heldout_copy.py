"""Held-out checks in the form that pages of a run read: copies of whole evaluations.

save_path/eval/step_40/ENV/metrics.json --first environment--> log_dir/heldout/step-40/
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from example_trainer.run.evaluation import RESULTS, Evaluation, EvaluationOutcome

HELDOUT = "heldout"
COPIED = ("samples.jsonl", "transcripts.jsonl")


def copy_to_heldout(evaluation: Evaluation, out: Path, log_dir: Path) -> None:
    """Copy the results of the first environment, with step and version, unless partial or failed.

    Raises:
        OSError: a file cannot be read or written.
    """
    whole = [p for p in evaluation.parts if p.name and p.outcome is EvaluationOutcome.DONE]
    if not whole:
        return
    source = out / whole[0].name
    target = log_dir / HELDOUT / f"step-{evaluation.step}"
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    document = json.loads((source / RESULTS).read_text(encoding="utf-8"))
    document.setdefault("config_general", {}).update(
        eval_step=evaluation.step, eval_policy_version=evaluation.version
    )
    (draft / RESULTS).write_text(json.dumps(document, indent=2), encoding="utf-8")
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, draft / name)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
