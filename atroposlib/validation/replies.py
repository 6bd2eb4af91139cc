"""Checks of scores: each is a list of replies to play, and a decision about the outcomes. Pure.

    plan(subject) -> tries        decide(played, limit, subject) -> (offences, line of text)

A row of ``REPLY_CHECKS`` is a check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atroposlib.validation import probes
from atroposlib.validation.bounds import SLACK
from atroposlib.validation.report import Proof, Verdict
from atroposlib.validation.subject import Case, Played, Subject, Try

TURNS = 8  # turns for which a reply is repeated
Offences = tuple[Sequence[Proof], str]
Plan = Callable[[Subject], list[Try]]
Decide = Callable[[Sequence[Played], float, Subject], Offences]


@dataclass(frozen=True)
class ReplyCheck:
    """A check of scores of given replies."""

    plan: Plan
    decide: Decide
    severity: Verdict = Verdict.FAIL
    needs_gold: bool = True


# --- decisions ------------------------------------------------------------------------


def scale_score(share: float, subject: Subject) -> float:
    """The score at ``share`` of the way from the floor to the best score."""
    return subject.floor + share * (subject.best - subject.floor)


def score_of(one: Played, subject: Subject) -> float:
    """The score; without a score the floor, since the reply is not trained on."""
    return subject.floor if one.score is None else one.score


def best_score(played: Sequence[Played], limit: float, subject: Subject) -> Offences:
    least = subject.best - limit
    low = [outcome for outcome in played if outcome.score is None or outcome.score < least]
    text = f"{len(played) - len(low)} of {len(played)} gold replies get {subject.best:g}"
    return [outcome.evidence() for outcome in low], text


def no_score(played: Sequence[Played], limit: float, subject: Subject) -> Offences:
    most = scale_score(limit, subject)
    high = [
        outcome for outcome in played if outcome.error or score_of(outcome, subject) > most
    ]
    text = f"{len(high)} of {len(played)} replies get over {most:.3g} or fail"
    if unscored := sum(outcome.score is None and not outcome.error for outcome in played):
        text += f", {unscored} have no score"
    return [outcome.evidence() for outcome in high], text


def low_mean(played: Sequence[Played], limit: float, subject: Subject) -> Offences:
    """No kind of reply has a mean above the limit, by more than chance in so few tasks."""
    kinds: dict[str, list[Played]] = {}
    for outcome in played:
        kinds.setdefault(outcome.what, []).append(outcome)
    means = {
        what: sum(score_of(outcome, subject) for outcome in some) / len(some)
        for what, some in kinds.items()
    }
    if not means:
        return [], "no two tasks to compare"
    worst = max(means, key=means.__getitem__)
    chance = 0.5 / len(kinds[worst]) ** 0.5 if limit >= 0.5 else 0.0
    most = scale_score(limit + chance, subject)
    text = f"mean {means[worst]:.3g} of {worst}, at most {most:.3g}"
    failed = [outcome.evidence() for outcome in played if outcome.error]
    high = [outcome for outcome in kinds[worst] if score_of(outcome, subject) > most]
    return failed + [outcome.evidence() for outcome in high] * (means[worst] > most), text


def small_change(played: Sequence[Played], limit: float, subject: Subject) -> Offences:
    """Accepted replies change little with their length, and refused replies stay refused."""
    before: dict[str, float] = {}
    changed: list[Proof] = []
    span = subject.best - subject.floor
    for outcome in played:
        kind, _, size = outcome.what.partition(" x")
        if outcome.score is None:
            continue
        if not size:
            before[outcome.case.id + kind] = outcome.score
            continue
        first = before.get(outcome.case.id + kind)
        # A format that refuses text around the answer is no reward of length.
        refused = outcome.score <= scale_score(SLACK, subject)
        if first is not None and not refused and abs(outcome.score - first) > limit * span:
            changed.append(
                outcome.evidence(f"{outcome.what}: {first:.3g} becomes {outcome.score:.3g}")
            )
    return changed, f"{len(changed)} of {len(played)} scores change by over {limit:g}"


# --- replies --------------------------------------------------------------------------


def gold_replies(subject: Subject) -> list[Try]:
    return [Try(case, case.gold, "gold") for case in subject.golden[: subject.few(32)]]


def fixed_replies(texts: Mapping[str, str], most: int) -> Plan:
    """Plan that tries the ``texts`` in each of ``most`` cases; keys are names of texts."""
    return lambda subject: [
        Try(case, [text] * TURNS, what)
        for case in subject.cases[: subject.few(most)]
        for what, text in texts.items()
    ]


def echoes(subject: Subject) -> list[Try]:
    tries = []
    for case in subject.cases[: subject.few(16)]:
        system = [m for m in case.asked if m.get("role") == "system"]
        shown = [str(message.get("content")) for message in system]
        shown += [case.prompt, *probes.examples_in(case.prompt)]
        tries += [Try(case, [text] * TURNS, "the prompt") for text in dict.fromkeys(shown)]
    return tries


def verdicts(subject: Subject) -> list[Try]:
    cases = subject.cases[: subject.few(8)]
    return [
        Try(case, [reply] * TURNS, what)
        for case in cases
        for what, text in probes.VERDICTS.items()
        for reply in dict.fromkeys(
            [text, *([probes.with_core(case.gold[-1], text)] if case.gold else [])]
        )
    ]


def constants(subject: Subject) -> list[Try]:
    """Tries of the most common gold replies and of constant answers, on the same tasks."""
    golden = subject.golden
    common = Counter(tuple(case.gold) for case in golden).most_common(1)
    shape = golden[0].gold[-1] if golden else ""
    cases = golden[: subject.few(64)]
    tries = [Try(case, list(common[0][0]), "the most common gold") for case in cases if common]
    cores = Counter(probes.core(case.gold[-1]) for case in golden)
    # remaining words cannot be common
    words = [word for word in probes.CONSTANTS if word in cores]
    words += [word for word in probes.CONSTANTS if word not in cores][:3]
    return tries + [
        Try(case, case.ending(probes.with_core(shape, word)), f"{word!r}")
        for word in words
        for case in cases
        if len(case.gold) == 1
    ]


def swaps(subject: Subject) -> list[Try]:
    golden = subject.golden[: subject.few(32) + 1]
    pairs = zip(golden, [*golden[1:], *golden[:1]])
    return [
        Try(case, neighbour.gold, "the gold of another task")
        for case, neighbour in pairs
        if list(case.gold) != list(neighbour.gold)
    ]


def lists_of_answers(subject: Subject) -> list[Try]:
    answers = [probes.core(case.gold[-1]) for case in subject.golden]
    return [
        Try(case, case.ending(reply), "the gold among others")
        for case in subject.golden[: subject.few(8)]
        if len(set(answers)) > 1 and probes.core(case.gold[-1])
        for reply in probes.mix_among(case.gold[-1], answers)
        if reply != case.gold[-1]
    ]


def author_s_wrong(subject: Subject) -> list[Try]:
    wrong = subject.card.wrong if subject.card else None
    cases = subject.cases[: subject.few(32)] if wrong is not None else []
    return [
        Try(case, reply, "a wrong reply of the author")
        for case in cases
        for reply in (wrong(case.item["task"]) if wrong is not None else ())
    ]


def lengths(subject: Subject) -> list[Try]:
    golden = subject.golden
    rotated: list[Case] = [*golden[1:], *golden[:1]]
    tries = []
    for case, next_case in list(zip(golden, rotated))[: subject.few(8)]:
        kinds = [("gold", case.gold)]
        if list(case.gold) != list(next_case.gold):
            kinds.append(("another's gold", next_case.gold))
        for kind, gold in kinds:
            replies = {"": gold[-1], " x2": probes.pad_reply(gold[-1], 2)}
            replies[" x8"] = probes.pad_reply(gold[-1], 8)
            tries += [
                Try(case, [*gold[:-1], text], kind + size) for size, text in replies.items()
            ]
    return tries


REPLY_CHECKS: dict[str, ReplyCheck] = {
    "gold.passes": ReplyCheck(gold_replies, best_score),
    "null.fails": ReplyCheck(fixed_replies(probes.NOTHING, 8), no_score, needs_gold=False),
    "echo.fails": ReplyCheck(echoes, no_score, needs_gold=False),
    "garbage.fails": ReplyCheck(fixed_replies(probes.GARBAGE, 4), no_score, needs_gold=False),
    "constant.fails": ReplyCheck(constants, low_mean),
    "swap.fails": ReplyCheck(swaps, low_mean),
    "many.fails": ReplyCheck(lists_of_answers, no_score, Verdict.WARN),
    "wrong.fails": ReplyCheck(author_s_wrong, no_score, needs_gold=False),
    "judge.injection": ReplyCheck(verdicts, no_score, needs_gold=False),
    "score.length": ReplyCheck(lengths, small_change, Verdict.WARN),
}
