"""Table of evaluation metrics."""

from __future__ import annotations

import numpy as np

from atroposlib.utils.display import display_metrics_table, metrics_table


def test_the_table_has_a_row_per_metric(capsys):
    rows = metrics_table("task", {"eval/percent_correct": 0.5, "length": 3.0}).splitlines()
    assert rows[2] == "|task|1|none| |percent correct|↑|0.5000|||"
    assert rows[3] == "|||none| |length||3.0000|||"
    assert metrics_table("t", {"exact": 0.5}, {"exact": 0.03}).endswith("|0.5000|±|0.0300|")
    odd = metrics_table(
        "t", {"exact": np.float32(0.25), "word": "x", "none": None}
    ).splitlines()
    assert [row.split("|")[6:8] for row in odd[2:]] == [
        ["", "0.2500"],
        ["", "x"],
        ["", "None"],
    ]
    display_metrics_table("task", {}, 1.0, 2.5)
    assert "task: no metrics" in capsys.readouterr().out
