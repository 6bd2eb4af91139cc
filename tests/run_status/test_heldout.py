from __future__ import annotations

import json

from atroposlib.run_status.heldout import Heldout, HeldoutSample


def write_check(directory, step, exact, samples):
    at = directory / f"step-{step}"
    at.mkdir(parents=True)
    document = {
        "config_general": {"eval_step": step, "eval_policy_version": step},
        "results": {"all": {"exact": exact, "reward": exact}},
    }
    (at / "metrics.json").write_text(json.dumps(document))
    (at / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))


def test_held_out_checks_are_read_in_order_of_their_steps(tmp_path):
    line = {"prompt": "1 + 1?", "completion": "2", "expected": "2", "reward": 1, "exact": True}
    for step, exact in ((10, 0.5), (0, 0.1), (20, 0.9)):
        write_check(tmp_path / "heldout", step, exact, [line])
    heldout = Heldout(tmp_path / "heldout")
    assert [(check.step, check.exact) for check in heldout.read()] == [
        (0, 0.1),
        (10, 0.5),
        (20, 0.9),
    ]
    (answers,) = heldout.answers()
    assert answers[0].step == 0
    assert answers[-1] == HeldoutSample(20, "1 + 1?", "2", "2", 1.0, True, 20)
    heldout.copy_samples(tmp_path / "samples.jsonl")
    text = (tmp_path / "samples.jsonl").read_text()
    copied = [json.loads(line) for line in text.splitlines()]
    assert [sample["step"] for sample in copied] == [0, 10, 20]


def test_a_check_without_an_exact_rate_counts_by_its_reward(tmp_path):
    line = {"prompt": "a joke?", "completion": "no", "reward": 0.4}
    write_check(tmp_path / "heldout", 0, None, [line])
    path = tmp_path / "heldout" / "step-0" / "metrics.json"
    document = json.loads(path.read_text())
    document["results"]["all"] = {"reward": 0.4, "items": 1}
    path.write_text(json.dumps(document))
    heldout = Heldout(tmp_path / "heldout")
    (check,) = heldout.read()
    assert (check.exact, check.rate) == (None, 0.4)
    heldout.copy_samples(tmp_path / "samples.jsonl")
    assert json.loads((tmp_path / "samples.jsonl").read_text())["completion"] == "no"


def test_a_partly_written_held_out_check_is_not_read(tmp_path):
    (tmp_path / "heldout" / "step-0").mkdir(parents=True)
    assert Heldout(tmp_path / "heldout").read() == []
    assert Heldout(tmp_path / "absent").read() == []


def test_the_answers_of_a_function_environment_are_matched_by_the_id_of_the_task(tmp_path):
    for step, text in ((0, "no"), (10, "yes")):
        prompt = [{"role": "user", "content": f"try {step}"}]
        line = {"id": "a", "prompt": prompt, "completion": text, "reward": None}
        again = {**line, "completion": "a second sample"}
        write_check(tmp_path / "heldout", step, 0.5, [line, again])
    (answers,) = Heldout(tmp_path / "heldout").answers()
    assert [(a.prompt, a.completion, a.exact) for a in answers] == [
        ("try 0", "no", None),
        ("try 10", "yes", None),
    ]
