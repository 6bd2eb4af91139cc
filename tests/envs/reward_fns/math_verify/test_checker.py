"""Verdicts on boxed answers; a check that hangs or fails returns no verdict instead of zero."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.math_verify import checker
from atroposlib.envs.reward_fns.math_verify.checker import Correctness, MathVerifier
from atroposlib.errors import ConfigError
from tests.text.answer_pairs import RIGHT, WRONG


@pytest.fixture
async def verifier():
    verifier = MathVerifier(timeout_s=20.0)
    yield verifier
    await verifier.close()


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        (r"\boxed{72}", "72", Correctness.CORRECT),
        (r"\boxed{72.0}", "72", Correctness.CORRECT),
        (r"\boxed{1,000}", "1000", Correctness.CORRECT),
        (r"\boxed{71}", "72", Correctness.WRONG),
        ("72", "72", Correctness.WRONG),
        (r"<think>\boxed{72}</think> it is 72", "72", Correctness.WRONG),
        (r"\boxed{" + "1" * 600 + "}", "72", Correctness.WRONG),
        (r"<think>Suppose it is \boxed{72}, then", "72", Correctness.WRONG),
        (r"Suppose \boxed{71}</think>\boxed{72}", "72", Correctness.CORRECT),
        (r"I get \boxed{71}, no, it is \boxed{72}", "72", Correctness.CORRECT),
        (r"First \boxed{72}. That was wrong: \boxed{71}", "72", Correctness.WRONG),
    ],
)
async def test_numbers_are_checked_in_the_same_process(verifier, text, gold, verdict):
    assert await verifier.check(text, gold) is verdict
    assert not verifier.processes[0].started


async def test_expressions_are_checked_by_math_verify_even_after_one_that_hangs(
    verifier, caplog
):
    assert await verifier.check(r"\boxed{\frac{144}{2}}", "72") is Correctness.CORRECT
    assert await verifier.check(r"\boxed{x+1}", "72") is Correctness.WRONG
    assert await verifier.check(r"\boxed{}{", "72") is Correctness.WRONG
    (process,) = verifier.processes
    process.timeout_s = 0.5
    assert await verifier.check("\\boxed{9^{9^{9}}}", "72") is None
    assert "within 0.5 s" in caplog.text
    process.timeout_s = 20.0
    assert await verifier.check(r"\boxed{2 \cdot 36}", "72") is Correctness.CORRECT


async def test_answers_in_the_forms_of_textbooks_get_the_right_verdict(verifier):
    wanted = {**dict.fromkeys(RIGHT, "correct"), **dict.fromkeys(WRONG, "wrong")}
    verdicts = {
        (answer, gold): await verifier.check(f"So it is \\boxed{{{answer}}}.", gold)
        for answer, gold in wanted
    }
    assert {pair: verdict and verdict.value for pair, verdict in verdicts.items()} == wanted
    assert len(RIGHT) + len(WRONG) >= 120 and len(WRONG) >= 40


def test_a_missing_math_verify_is_an_error_with_its_extra_before_the_first_check(monkeypatch):
    monkeypatch.setattr(checker, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'atropos-rl\[math\]'"):
        MathVerifier()
