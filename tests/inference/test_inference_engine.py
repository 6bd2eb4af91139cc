"""The engine as a service: pausing, cancelling, stopping and failing."""

from __future__ import annotations

import threading

import pytest
import torch

from atroposlib.errors import InferenceUnavailable, RolloutError
from atroposlib.inference.engine.engine import EngineState, PauseMode
from atroposlib.inference.engine.sequence import FinishReason
from tests.inference.helpers import WAIT_S, generate, request


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


def test_a_pause_that_cannot_complete_says_what_it_waits_for(engine):
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
