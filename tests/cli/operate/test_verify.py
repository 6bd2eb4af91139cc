"""atropos verify over the data directory of an ended run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from atroposlib.api.archive.certificates import stored_rows
from atroposlib.api.archive.load import open_explorer
from atroposlib.cli.operate.verify import main, rescored_lines
from atroposlib.errors import ConfigError, UnknownGroup
from atroposlib.testing.tiny import ASCII_ALPHABET, write_tiny_model


def test_a_sound_run_has_a_table_by_claim_and_status_0(run, capsys):
    assert main([str(run)]) == 0
    table = capsys.readouterr().out
    [tokens] = [line for line in table.splitlines() if line.startswith("tokens")]
    assert tokens.split()[1:5] == ["2", "0", "0", "0"]


def test_a_refuted_claim_is_named_and_ends_with_status_1(run, capsys):
    with open_explorer(run, None) as (_, explorer):
        explorer.index.change("UPDATE rollout SET reward = 9 WHERE row = 1")
    assert main([str(run), "--batch", "1"]) == 1
    assert "batch 1, group 1, row 1: bytes: reward 1.0" in capsys.readouterr().err


def test_json_has_the_claims_of_each_row(run, capsys):
    assert main([str(run), "--json"]) == 0
    batch = json.loads(capsys.readouterr().out)
    assert batch["rows"][1]["claims"]["tokens"] == "proved"


def test_a_batch_that_is_not_there_is_an_error(run):
    with pytest.raises(UnknownGroup, match="batch 9"):
        main([str(run), "--batch", "9"])


def test_stored_weights_score_rows_of_their_version_again(run, tmp_path, capsys):
    model = write_tiny_model(tmp_path / "tiny", alphabet=ASCII_ALPHABET)
    with pytest.raises(ConfigError, match="no stored row was sampled by version 9 alone"):
        main([str(run), "--model", str(model), "--weights-version", "9"])
    with open_explorer(run, None) as (store, _):
        rows = stored_rows(store, 1)
    one_version = [replace(row, versions=np.where(row.trained, 3, -1)) for row in rows]
    lines = rescored_lines(model, 3, one_version)  # logprobs of no model
    assert "2 rows of version 3, 12 tokens" in capsys.readouterr().err
    assert len(lines) == 2 and "nats per token" in lines[0]
