"""A command again at each change of a file, within a bound."""

from __future__ import annotations

from atroposlib.cli.trial import watch


def test_a_command_runs_again_at_each_change_until_nothing_changes(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    path, runs = tmp_path / "env.py", list[list[str]]()
    path.write_text("1")

    def run(command):
        runs.append(command)
        if len(runs) < 3:
            path.write_text("1" * (1 + len(runs)))  # also while the command runs
        return len(runs)

    assert watch.run_at_each_change(["try"], path, run, most_s=0.05) == 3
    assert runs == [["try"]] * 3
    assert "status 3; waits for a change of" in capsys.readouterr().out


def test_a_file_that_an_editor_replaces_is_no_change_until_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    assert watch.stamp_of(tmp_path / "absent") == (0, 0)
    assert not watch.has_changed(tmp_path / "absent", (1, 1), most_s=0.03)
