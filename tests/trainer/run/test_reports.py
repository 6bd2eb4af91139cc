"""Notes of a batch by hand; reports that are lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from atroposlib.client import RolloutClient
from atroposlib.errors import Forbidden, RolloutApiRefused, RolloutApiUnavailable
from atroposlib.wire import ClaimedBatch
from atroposlib.wire.notes import CLIPPED, FILTERED, TOO_OLD
from example_trainer.advantage.prepare import prepare_batch
from example_trainer.data.rows import to_rows
from example_trainer.run import reports
from example_trainer.run.reports import Reporter, TokenValues, notes_of
from example_trainer.settings.config import TrainingConfig
from tests.trainer.rows import scored
from tests.trainer.run.noted_ranks import LENGTHS_G_R

NAN = pytest.approx(math.nan, nan_ok=True)
GROUPS = [
    scored(
        [[1, 2, 3], [1, 4, 5], [1, 6]],
        1,
        [1.0, 0.0, 0.5],
        versions=[[-1, 0, 9], [-1, 9, 9], [-1, 9]],
    ),
    scored([[1, 2], [1, 3]], 1, [1.0, 1.0], outcomes=["ok", "judge_error"]),
]


def prepared_of(**settings):
    cfg = TrainingConfig(model_name="m", batch_size=4, **settings)
    batch = to_rows(GROUPS, 64)
    return batch, prepare_batch(batch.rows, cfg, 10)


def test_notes_are_what_the_step_computed_of_each_trained_token():
    batch, prepared = prepared_of(max_token_staleness=5, dynamic_filter=True)
    values = TokenValues()
    logprobs = torch.tensor([[-1.5, 0.0], [-1.0, -2.0], [-1e6, 0.0]])
    clipped = torch.tensor([[False, False], [False, True], [False, False]])
    values.add([0, 1, 2], logprobs, [clipped])
    values.add([0, 1, 2], logprobs - 7, [clipped[[1, 0, 2]]])  # a later epoch
    values.kept_R[2] = [False]
    first, second = notes_of(GROUPS, batch, prepared, values)
    assert (first.member, first.counts.tolist()) == (0, [2, 2, 1])
    # Row 0: the first token is older than 5 versions.
    assert first.flags.tolist() == [TOO_OLD, 0, 0, CLIPPED, FILTERED]
    assert first.logprobs.tolist() == [NAN, -1.5, -1.0, -2.0, float(np.finfo(np.float16).min)]
    deviation = np.std([1.0, 0.0, 0.5])
    expected = [NAN, 0.5 / deviation, -0.5 / deviation, -0.5 / deviation, 0.0]
    assert first.advantages.tolist() == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert first.diff_mean.tolist()[:2] == [0.5, 0.5]  # the sampler's logprobs are -1
    assert first.diff_max.tolist()[:2] == [0.5, 1.0]
    assert first.reasons == [None, None, "zero_advantage"]
    assert second.reasons == ["equal_rewards", "judge_error"]
    assert second.counts.tolist() == [1, 0] and second.flags.tolist() == [FILTERED]


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [[2, 0, 0]]), (4, [[2, 2, 1], [1, 0]]), (0, [])]
)
def test_only_the_first_rows_are_noted(most, counts):
    batch, prepared = prepared_of()
    values = TokenValues([([0, 1, 2, 3], torch.zeros(4, 2), None)])
    notes = list(notes_of(GROUPS, batch, prepared, values, most))
    assert [one.counts.tolist() for one in notes] == counts


@pytest.mark.alone
@pytest.mark.parametrize(("loss", "flags"), [("grpo", [0, CLIPPED]), ("m2po", [0, FILTERED])])
def test_two_ranks_note_each_row_once_and_as_one_rank_does(ranks, loss, flags):
    for rank in ranks:
        one = rank["noted"][loss]
        assert one["members"] == [0, 1, 2]
        assert one["counts"] == [list(lengths) for lengths in LENGTHS_G_R[:2]] + [[2] * 4]
        assert one["flags"] == flags
        assert one["same flags"] and one["same reasons"]
        assert one["distance"] < 2**-9  # a logprob has 11 bits


@pytest.fixture
def attempts(monkeypatch):
    """Errors that the calls raise one after another; then they succeed. And the calls made."""
    errors, made = [], []

    def call(self, *args, **more):
        made.append(args)
        if errors:
            raise errors.pop(0)

    for name in ("send_notes", "report_step"):
        monkeypatch.setattr(RolloutClient, name, call)
    return errors, made


@pytest.mark.parametrize(
    ("errors", "lost"),
    [
        ([], 0),
        ([RolloutApiUnavailable("no answer")], 1),
        ([RolloutApiRefused(409, "another trainer"), Forbidden("no trainer")], 2),
    ],
)
def test_a_report_that_fails_is_lost_and_counted_and_the_next_is_sent(attempts, errors, lost):
    failing, made = attempts
    failing += errors
    batch, prepared = prepared_of()
    values = TokenValues([([0, 1, 2, 3], torch.zeros(4, 2), None)])
    with Reporter("http://localhost:1", lambda: 1, None) as reporter:
        reporter.batch(
            ClaimedBatch(batch_no=1, epoch=1, batch=GROUPS), batch, prepared, values
        )
        reporter.step(1, {"loss": 0.5, "batch_no": 1, "keys": ["a"], "nan": math.nan})
    assert (len(made), reporter.lost) == (2, lost)
    report = made[-1][0]
    assert (report.step, report.values) == (1, {"loss": 0.5, "batch_no": 1})


def test_a_loop_that_is_faster_than_the_api_loses_reports_and_does_not_wait(attempts):
    reporter = Reporter("http://localhost:1", lambda: 1, None)  # its thread has not begun
    for step in range(reports.MAX_WAITING + 3):
        reporter.step(step, {})
    assert reporter.lost == 3
    with reporter:
        pass
    assert len(attempts[1]) == reports.MAX_WAITING


def test_an_evaluation_is_reported_under_its_step_without_a_batch(attempts):
    with Reporter("http://localhost:1", lambda: 1, None) as reporter:
        reporter.evaluation(4, {"eval/exact": 0.5, "nan": math.nan})
        reporter.evaluation(5, {})  # a failed one has no number
    ((report,),) = attempts[1]
    assert (report.step, report.batch_no, report.values) == (4, None, {"eval/exact": 0.5})
