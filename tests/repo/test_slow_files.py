"""Files that `make check` leaves out."""

from __future__ import annotations

from tests import slow_files


def test_files_are_slow_by_the_mean_and_the_sum_of_their_tests():
    seconds = {"a.py": [0.5] * 4, "short.py": [1.4], "many.py": [0.01] * 900, "b.py": [9.0]}
    assert slow_files.over_limits(seconds) == ["a.py", "b.py"]


def test_every_listed_file_exists_and_does_not_mark_itself():
    listed = slow_files.slow_files()
    assert [path for path in listed if not path.is_file() or slow_files.is_marked(path)] == []
