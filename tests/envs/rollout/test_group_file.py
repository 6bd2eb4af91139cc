"""File of groups: a line each, once over the lives of an environment."""

from __future__ import annotations

import json

from atroposlib.envs.rollout.group_file import GroupFile


def test_a_saved_group_is_one_line_also_with_values_that_are_not_json(tmp_path):
    file = GroupFile(str(tmp_path / "g.jsonl"))
    file.write({"tokens": [[1]], "images": b"raw", "notes": {"hook": file}})
    line = json.loads((tmp_path / "g.jsonl").read_text())  # flushed before it is closed
    file.close()
    assert line["images"] == "cmF3" and "GroupFile" in line["notes"]["hook"]


def test_a_line_has_the_fields_of_the_original_s_files(tmp_path):
    file = GroupFile(str(tmp_path / "g.jsonl"))
    file.write_with_absent({"tokens": [[1]], "overrides": [{"sft": True}]})
    file.close()
    absent = ["ref_logprobs", "group_overrides", "distill_token_ids", "distill_logprobs"]
    line = json.loads((tmp_path / "g.jsonl").read_text())
    assert line == {"tokens": [[1]], "overrides": [{"sft": True}], **dict.fromkeys(absent)}


def test_a_group_that_the_earlier_life_wrote_is_not_written_again(tmp_path):
    wanted = str(tmp_path / "g.jsonl")
    first = GroupFile(wanted)
    for key in ("a-0", "a-b-0", "c-0"):
        first.write({"idempotency_key": key, "tokens": [[1]]})
    first.close()
    with first.path.open("ab") as file:
        file.write(b'{"idempotency_key": "d-0", "tok')  # torn by a kill
    second = GroupFile(wanted)
    second.follow_earlier({"a", "a-b", "d"})  # c was sent
    for key in ("a-0", "a-1", "a-b-0", "c-0", "d-0"):
        second.write({"idempotency_key": key, "tokens": [[2]]})
    second.close()
    lines = (tmp_path / "g_1.jsonl").read_text().splitlines()
    assert [json.loads(line)["idempotency_key"] for line in lines] == ["a-1", "c-0", "d-0"]
