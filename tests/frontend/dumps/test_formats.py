"""What each format of other trainers holds, and what it lacks."""

from __future__ import annotations

import json

import pytest

from atroposlib.errors import ConfigError
from atroposlib.frontend.dumps import FORMATS, read_dump, step_of
from atroposlib.frontend.jsonl2html import page_data
from atroposlib.ui.export import exported_page
from atroposlib.wire import MASKED
from tests.frontend.dumps import records

# record, format, roles, score, tokens with masks, logprobs of trained tokens, missing parts
CASES = {
    "verl": (
        records.VERL, "verl generations", ["prompt", "assistant"], 1.0, [], None,
        {"messages by role", "finish reasons", "tokens", "logprobs", "policy versions",
         "advantages"},
    ),
    "slime": (
        records.SLIME, "slime or miles rollouts", ["prompt", "assistant"], 1.0,
        [MASKED, MASKED, 7, MASKED], [-0.5], {"messages by role", "steps", "advantages"},
    ),
    "trace": (
        records.TRACE, "prime-rl traces", ["user", "assistant"], 2.0,
        [MASKED, MASKED, MASKED, 8], [-0.5], {"steps", "policy versions"},
    ),
    "rollout": (
        records.ROLLOUT, "prime-rl rollouts", ["user", "assistant"], 1.0,
        [MASKED, MASKED, 7, 8], [-0.5, -0.25], {"steps", "policy versions"},
    ),
    "nemo": (
        records.TRAINING_DATA, "NeMo RL training data", ["text", "text"], 1.0,
        [MASKED, MASKED, 7], [-0.5],
        {"messages by role", "steps", "finish reasons", "policy versions"},
    ),
    "gym": (
        records.GYM, "NeMo Gym rollouts", ["user", "assistant", "assistant", "tool", "assistant"],
        1.0, [], None, {"steps", "tokens", "logprobs", "policy versions", "advantages"},
    ),
    "atif": (
        records.ATIF, "ATIF trajectory", ["user", "assistant", "tool"], None,
        [MASKED, MASKED, 7], [-0.5],
        {"rewards", "groups", "steps", "finish reasons", "policy versions", "advantages"},
    ),
}  # fmt: skip


def write_lines(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_record_becomes_a_sample_with_what_it_holds(tmp_path, case):
    record, name, roles, score, masks, logprobs, missing = case
    dump = read_dump(write_lines(tmp_path / "dump.jsonl", record))
    assert (dump.format, len(dump.groups), set(dump.missing)) == (name, 1, missing)
    (group,) = dump.groups
    assert [message["role"] for message in group["messages"][0]] == roles
    assert (group["scores"], group["masks"]) == ([score], [masks])
    values = group["inference_logprobs"][0]
    own = [value for value, label in zip(values or (), masks) if label != MASKED]
    assert (own or None) == logprobs
    assert group["metadata"]["not in the dump"].split(", ") == dump.missing


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_record_has_exactly_its_own_format(case):
    first = next(kind for kind in FORMATS if kind.matches(case[0]))
    assert first.name == case[1]
    assert sum(kind.matches(case[0]) for kind in FORMATS) == 1


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_page_names_what_is_missing_and_escapes_texts(tmp_path, case):
    text = json.dumps(case[0]).replace('"4"', '"</script><b>4"').replace("a.txt", "</script>")
    path = tmp_path / "dump.jsonl"
    path.write_text(text)
    page = exported_page(page_data(path)).decode()
    assert f"Format: {case[1]}." in page and "Not in this dump: " in page
    assert "</script><b>" not in page and page.count("</script>") == page.count("<script")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_record_that_breaks_its_format_is_named_by_file_and_number(tmp_path, case):
    path = write_lines(tmp_path / "dump.jsonl", case[0], 5)
    with pytest.raises(ConfigError, match="dump.jsonl record 2"):
        read_dump(path)


def test_samples_of_a_prompt_are_a_group(tmp_path):
    second = {**records.VERL, "output": "5", "score": 0.0}
    third = {**records.VERL, "input": "another"}
    dump = read_dump(write_lines(tmp_path / "7.jsonl", records.VERL, third, second))
    assert [group["scores"] for group in dump.groups] == [[1.0, 0.0], [1.0]]
    assert dump.groups[0]["metadata"]["named_rewards"][0] == {"acc": 1.0, "format": 0.5}


def test_files_of_a_folder_come_in_the_order_of_their_numbers(tmp_path):
    for step in (10, 9):
        folder = tmp_path / f"step_{step}"
        folder.mkdir()
        write_lines(folder / "train_rollouts.jsonl", records.TRACE)
    dump = read_dump(tmp_path)
    assert [group["metadata"]["step"] for group in dump.groups] == [9, 10]
    assert "steps" not in dump.missing
    assert step_of(tmp_path / "train_data_step12.jsonl") == 12


def test_groups_of_this_package_and_other_files_are_no_dump(tmp_path):
    own = write_lines(
        tmp_path / "groups.jsonl", {"messages": [[]], "scores": [1.0], "tokens": []}
    )
    assert read_dump(own) is None
    (tmp_path / "text.jsonl").write_text("no JSON")
    for name in ("text.jsonl", "missing", "picture.png"):
        assert read_dump(tmp_path / name) is None


def test_versions_of_several_calls_are_unknown_per_token(tmp_path):
    mixed = {**records.SLIME, "weight_versions": ["2", "3"]}
    dump = read_dump(write_lines(tmp_path / "a.jsonl", mixed))
    assert "policy versions" in dump.missing
