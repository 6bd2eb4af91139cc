"""Rollouts of a trial as one file: texts of a model stand in it as data."""

from __future__ import annotations

from atroposlib.cli.trial.page import TrialPage

ROW = {"tokens": [1, 2], "masks": [-100, 2], "inference_logprobs": [1.0, -0.5]}
HOSTILE = "</script><script>alert(1)</script>"


class Tokenizer:
    name_or_path = "tiny"

    def decode(self, ids, **_):
        return "".join(chr(96 + i) for i in ids)


def test_rows_with_hostile_texts_are_in_the_page_without_markup(tmp_path, capsys):
    page = TrialPage(tmp_path / "two.html")
    messages = [{"role": "user", "content": HOSTILE}]
    page.add(
        Tokenizer(), ROW, messages, 0.5, {"env": "two", "item": "7", "rewards": {"a": 1.0}}
    )
    page.write()
    text = (tmp_path / "two.html").read_text()
    assert HOSTILE not in text and "alert(1)" in text and '"item":"7"' in text
    assert "1 rows in" in capsys.readouterr().out


def test_without_a_file_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = TrialPage(None)
    page.add(None, ROW, [], None, {})
    page.write()
    assert not list(tmp_path.iterdir())
