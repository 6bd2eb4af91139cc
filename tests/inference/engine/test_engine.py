"""The engine as a service: pausing, cancelling, stopping and failing."""

from __future__ import annotations

import threading

import pytest
import torch

from atroposlib.errors import InferenceUnavailable, RolloutError, WeightsError
from atroposlib.inference.engine.engine import EngineState, PauseMode
from atroposlib.inference.engine.request import FinishReason, VersionSpan
from tests.inference.helpers import WAIT_S, fresh_logprobs, generate, request


def test_requests_that_arrive_while_paused_wait_and_then_run(engine):
    engine.pause(PauseMode.WAIT)
    late = request([5, 6], max_tokens=3)
    engine.submit(late)
    engine.set_weight_version(0)  # a command behind it: the inbox has been read
    assert engine.state is EngineState.PAUSED
    assert engine.num_waiting == 1 and not late.future.done()
    engine.resume()
    assert len(late.future.result(WAIT_S).outputs) == 1


def test_pause_wait_returns_when_the_running_sequences_have_finished(engine, freeze_after):
    running = request([5, 6], max_tokens=30, ignore_eos=True)
    freeze_after(engine, running, tokens=2)
    engine.pause(PauseMode.WAIT, timeout_s=WAIT_S)
    assert len(running.future.result(0).outputs[0].tokens) == 30
    assert engine.state is EngineState.PAUSED


def test_pause_abort_ends_running_and_waiting_sequences(make_engine, freeze_after):
    engine = make_engine(max_batch=1)
    running = request([5, 6], max_tokens=30, ignore_eos=True)
    waiting = request([7, 8], max_tokens=4)
    freeze_after(engine, running, waiting, tokens=2)
    engine.pause(PauseMode.ABORT)
    (cut,) = running.future.result(0).outputs
    assert cut.finish_reason is FinishReason.ABORT and 2 <= len(cut.tokens) < 30
    (empty,) = waiting.future.result(0).outputs
    assert empty.finish_reason is FinishReason.ABORT and empty.tokens == []


def test_a_pause_that_times_out_raises_with_its_mode_and_timeout(engine):
    inside, go_on = threading.Event(), threading.Event()
    running = request([5, 6], max_tokens=5, ignore_eos=True)
    # holds the engine inside a step
    running.on_event = lambda _: inside.set() or go_on.wait(WAIT_S)
    engine.submit(running)
    assert inside.wait(WAIT_S)
    with pytest.raises(InferenceUnavailable, match=r"pause\(mode=wait\) .* within 0.05 s"):
        engine.pause(PauseMode.WAIT, timeout_s=0.05)
    go_on.set()
    assert len(running.future.result(WAIT_S).outputs[0].tokens) == 5


def test_a_cancelled_request_frees_its_rows(engine, freeze_after):
    gone = request([5, 6], n=3, max_tokens=200, ignore_eos=True)
    freeze_after(engine, gone, tokens=2)
    assert engine.num_running == 3
    engine.cancel(gone)
    engine.resume()
    assert engine.num_running == 0
    with pytest.raises(InferenceUnavailable):
        gone.future.result(0)


def test_end_of_sequence_is_kept_as_a_token_and_can_be_ignored_or_delayed(engine, reference):
    (eos,) = reference.eos_ids
    plain = request([5, 6], n=64, max_tokens=40)
    ignoring = request([5, 6], n=64, max_tokens=40, ignore_eos=True)
    delayed = request([5, 6], n=64, max_tokens=40, min_tokens=20)
    results = generate(engine, plain, ignoring, delayed)
    stopped = [o for o in results[0].outputs if o.finish_reason is FinishReason.STOP]
    assert stopped
    for output in stopped:
        assert output.tokens[-1] == eos and eos not in output.tokens[:-1]
        assert len(output.logprobs) == len(output.tokens)
    assert {len(o.tokens) for o in results[1].outputs} == {40}
    assert all(eos not in o.tokens[:20] for o in results[2].outputs)


def test_a_stop_string_trims_the_text_and_ends_the_tokens(engine, reference):
    results = generate(engine, request([5, 6], n=40, max_tokens=60, stop=("a", "b"), seed=1))
    stopped = [o for o in results[0].outputs if o.stop_text is not None]
    assert stopped
    for output in stopped:
        text = reference.tokenizer.decode(output.tokens, skip_special_tokens=True)
        assert text[-1] in "ab" and output.stop_text == text[:-1]
        assert "a" not in output.stop_text and "b" not in output.stop_text
        assert output.finish_reason is FinishReason.STOP


def test_a_stop_token_ends_a_sequence_and_is_kept(engine):
    results = generate(
        engine, request([5, 6], n=40, max_tokens=60, stop_token_ids=frozenset({9}))
    )
    stopped = [o for o in results[0].outputs if 9 in o.tokens]
    assert stopped and all(o.tokens.index(9) == len(o.tokens) - 1 for o in stopped)


def test_a_failing_forward_fails_its_requests_and_the_engine_goes_on(engine, monkeypatch):
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("device fell over")

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.served), "decode", broken)
        doomed = request([5, 6], n=2, max_tokens=5, ignore_eos=True)
        engine.submit(doomed)
        with pytest.raises(RolloutError, match="device fell over"):
            doomed.future.result(WAIT_S)
    assert len(generate(engine, request([5, 6], max_tokens=3))[0].outputs) == 1


def test_scores_are_answered_while_paused_so_that_weights_can_be_verified(engine):
    engine.pause(PauseMode.WAIT)
    one = request([5, 6, 7], max_tokens=0)
    one.prompt_logprobs = 0
    engine.submit(one)
    entries = one.future.result(WAIT_S).prompt_logprobs
    assert [len(entry or {}) for entry in entries] == [0, 1, 1]
    assert torch.isfinite(torch.tensor([entries[1][6], entries[2][7]])).all()


def test_a_pause_not_resumed_by_its_owner_ends_at_its_bound(engine):
    engine.pause(PauseMode.WAIT, resume_after_s=WAIT_S)
    assert engine.state is EngineState.PAUSED and 0 < engine.resumes_in_s <= WAIT_S
    engine.pause(PauseMode.WAIT, resume_after_s=0.05)
    generate(engine, request([5, 6], max_tokens=1))  # answered when it is over
    assert engine.state is EngineState.RUNNING
    assert engine.resumes_in_s is None and engine.counters.forgotten_pauses == 1


@pytest.mark.parametrize("lift", ["pause", "stay_paused", "failed load", "new weights"])
def test_a_pause_stays_once_its_bound_is_lifted_or_weights_were_touched(
    engine, other_dir, tmp_path, lift
):
    engine.pause(PauseMode.WAIT, resume_after_s=WAIT_S)
    if lift == "pause":
        engine.pause(PauseMode.WAIT)
    elif lift == "stay_paused":
        engine.stay_paused()
    elif lift == "failed load":
        with pytest.raises(WeightsError):
            engine.update_weights(str(tmp_path / "absent"))
    else:
        engine.update_weights(str(other_dir))
    assert engine.resumes_in_s is None and engine.is_paused
    engine.resume()
    generate(engine, request([5, 6], max_tokens=1))


EXACT = 1e-4


def test_an_engine_keeps_the_old_weights_after_a_failed_reload(engine, reference, tmp_path):
    with pytest.raises(WeightsError):
        engine.update_weights(str(tmp_path / "absent"), version=9)
    assert engine.weight_version == 0
    (result,) = generate(engine, request([5, 6], max_tokens=4))
    fresh = fresh_logprobs(reference, [5, 6], result.outputs[0].tokens)
    assert (fresh - torch.tensor(result.outputs[0].logprobs)).abs().max() < EXACT


def test_weights_that_change_without_a_version_get_the_next_one(engine, other_dir):
    engine.update_weights(str(other_dir))
    assert engine.weight_version == 1
    engine.set_weight_version(7)
    assert engine.weight_version == 7


def test_a_kept_sequence_goes_on_under_the_new_weights_with_exact_logprobs(
    engine, other_dir, reference, other_reference, freeze_after
):
    kept = request([5, 6, 7], n=2, max_tokens=40, ignore_eos=True)
    longer = request([8] * 20, max_tokens=30, ignore_eos=True)
    freeze_after(engine, kept, longer, tokens=5)
    engine.update_weights(str(other_dir), version=3)
    engine.resume()
    for one in (kept, longer):
        for output in one.future.result(WAIT_S).outputs:
            old, new = output.versions
            assert (old.version, old.start, new.version, new.end) == (
                0, 0, 3, len(output.tokens),
            )  # fmt: skip
            assert old.end == new.start >= 5
            expected = torch.cat([
                fresh_logprobs(reference, one.prompt_ids, output.tokens)[: old.end],
                fresh_logprobs(other_reference, one.prompt_ids, output.tokens)[old.end :],
            ])  # fmt: skip
            assert (expected - torch.tensor(output.logprobs)).abs().max() < EXACT


def test_pausing_in_mode_keep_without_a_reload_leaves_one_span(engine, freeze_after):
    kept = request([5, 6, 7], max_tokens=20, ignore_eos=True)
    freeze_after(engine, kept, tokens=3)
    assert engine.num_running == 1 and not kept.future.done()
    engine.pause(PauseMode.KEEP)
    engine.resume()
    assert kept.future.result(WAIT_S).outputs[0].versions == [VersionSpan(0, 0, 20)]
