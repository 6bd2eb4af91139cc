"""Checks of whole rollouts: repetition, order, time, failures, tools, leftovers."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from atroposlib.errors import AtroposError
from atroposlib.validation import probes
from atroposlib.validation.classes import WRONG
from atroposlib.validation.replies import Offences
from atroposlib.validation.report import NothingCompared, Proof
from atroposlib.validation.sessions import RecordingSession, longest_gap
from atroposlib.validation.subject import PLAY_S, Played, Subject, Try, text_of

REPEATS = 5
AT_ONCE = 8
EPISODES = 50
CANCELLED = 10
LONGEST_BLOCK_S = 0.1
GRACE_S = 2.0  # time for children and threads that end on their own
NO_TOOL = "error: there is no tool"


def typical(subject: Subject, most: int) -> list[Try]:
    """Tries of gold replies and of gold replies of another task; "yes" and "42" if missing."""
    tries = []
    cases = subject.golden or subject.cases
    cases = cases[: subject.few(most)]
    for case, next_case in zip(cases, [*cases[1:], *cases[:1]]):
        wrong = list(next_case.gold) or ["42"]
        tries += [Try(case, list(case.gold) or ["yes"], "gold"), Try(case, wrong, "another's")]
    return tries


def observations(played: Played) -> list[tuple[str, str]]:
    """Role and text of every message that was sent; ids of tool calls are random."""
    return [(str(m.get("role")), text_of(m)) for sent in played.requests for m in sent]


def differs(first: Played, second: Played, limit: float, how: str) -> list[Proof]:
    if first.score is None or second.score is None:
        same = (first.score, bool(first.error)) == (second.score, bool(second.error))
    else:
        same = abs(first.score - second.score) <= limit
    note = f"{first.score} and, {how}, {second.score}"
    return [] if same else [first.evidence(note)]


async def repeated_score(subject: Subject, limit: float) -> Offences:
    """Equal replies to a task get equal scores."""
    proofs = []
    tries, repeats = typical(subject, 8), subject.few(REPEATS)
    for attempt in tries:
        first, *again = await subject.play_all([attempt] * repeats)
        proofs += [piece for two in again for piece in differs(first, two, limit, "again")]
    return proofs, f"{len(tries)} replies scored {repeats} times"


async def order(subject: Subject, limit: float) -> Offences:
    """Scores are the same in another order, and of rollouts at the same time."""
    tries = typical(subject, 8)
    proofs = []
    first = await subject.play_all(tries)
    backwards = (await subject.play_all(tries[::-1]))[::-1]
    for forwards, two in zip(first, backwards):
        proofs += differs(forwards, two, limit, "in another order")
    for start in range(0, len(tries), AT_ONCE):
        some = tries[start : start + AT_ONCE]
        together = await asyncio.gather(*map(subject.play, some))
        for forwards, two in zip(first[start:], together):
            proofs += differs(forwards, two, limit, f"{AT_ONCE} at once")
    return proofs, f"{len(tries)} replies in two orders and at once"


async def in_groups(subject: Subject, limit: float) -> Offences:
    """A gold reply gets the same score in a group with wrong replies and with a right reply."""
    proofs, compared = [], 0
    for case in subject.golden[: subject.few(8)]:
        scores = []
        for replies in (WRONG, case.gold):
            session = RecordingSession(case.gold)
            with suppress(AtroposError):  # gold.passes reports it
                beside = subject.rollouts.beside(case.item, session, [WRONG, replies])
                scores.append(await asyncio.wait_for(beside, PLAY_S))
        if None in scores or len(scores) < 2:
            continue
        compared += 1
        if abs(scores[0] - scores[1]) > limit:
            note = f"{scores[0]:.3g} beside wrong replies, {scores[1]:.3g} beside a right one"
            proofs.append(Proof(case.id, case.gold[-1], note=note))
    if not compared:
        raise NothingCompared("no gold reply has a score in both groups")
    return proofs, f"{compared} gold replies beside others"


async def repeated_episode(subject: Subject, limit: float) -> Offences:
    """Equal seeds and replies bring equal observations."""
    proofs = []
    tries = typical(subject, 8)
    for attempt in tries:
        first, second = await subject.play_all([attempt, attempt])
        if observations(first) != observations(second):
            pairs = zip(observations(first), observations(second))
            text = next(
                (f"{a[1]!r} and {b[1]!r}" for a, b in pairs if a != b), "more messages"
            )
            proofs.append(first.evidence(f"again it observes {text}"))
    return proofs, f"{len(tries)} episodes played twice"


async def finite(subject: Subject, limit: float) -> Offences:
    """Every score so far is a number up to the best score, and None only without an answer."""
    most = subject.best + limit if subject.card else float("inf")  # no card: unknown
    scores = [play.score for play in subject.played if play.score is not None]
    proofs = [
        play.evidence(f"over the best score {subject.best:g}")
        for play in subject.played
        if play.score is not None and play.score > most
    ]
    proofs += [
        play.evidence() for play in subject.played if "cannot be trained on" in play.error
    ]
    named = ["gold", "another's", "empty"]
    if subject.of_class:  # a class may omit short replies, and has no scores for equal replies
        named = named[:2] if subject.golden else []
    wrong = [play for play in subject.played if play.what in named]
    unscored = [play for play in wrong if play.score is None and not play.error]
    proofs += [
        play.evidence("None: drawn again, so that only some are counted") for play in unscored
    ]
    if not scores and not proofs:
        raise NothingCompared("no reply has a score")
    return proofs, f"{min(scores):g} to {max(scores):g}" if scores else "no reply has a score"


async def quick(subject: Subject, limit: float) -> Offences:
    """Rollouts without the time of a model are short and leave the event loop free."""
    gaps, seconds = [], []
    for attempt in typical(subject, 4):
        async with longest_gap() as gap:
            played = await subject.play(attempt)
        gaps.append(gap[0])
        seconds.append(played.seconds)
    middle = sorted(gaps)[len(gaps) // 2]  # a single long gap may be the machine's
    slowest = sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    text = f"95 % within {slowest:.2g} s, blocks of {1000 * middle:.0f} ms"
    proofs = []
    if slowest > limit:
        proofs.append(Proof("", note=f"{slowest:.2g} s of a rollout, without the model"))
    if middle > LONGEST_BLOCK_S:
        proofs.append(Proof("", note=f"blocks the event loop for {1000 * middle:.0f} ms"))
    return proofs, text


async def raised(subject: Subject, limit: float) -> Offences:
    """A server that fails is a failed rollout, and never a score."""
    proofs: list[Proof] = []
    called = False
    for case in subject.cases[:2]:
        session = RecordingSession("", fail_at=0)
        played = await subject.play(Try(case, "", "a failed call"), session)
        called |= bool(played.requests)
        if played.requests and played.score is not None:
            proofs.append(played.evidence(f"a failed call of the model gets {played.score:g}"))
    if not called:
        raise NothingCompared("no rollout calls the model")
    return proofs, "a failed call of the model raises"


async def tools(subject: Subject, limit: float) -> Offences:
    """Tools take what their schema describes, and answer wrong calls with a text."""
    offences, names = [], set()
    for case in subject.cases[:2]:
        bare = await subject.play(Try(case, "", "nothing"))
        for tool in bare.tools:
            about = tool.get("function", tool)
            name, schema = about.get("name", ""), about.get("parameters") or {}
            names.add(name)
            right = probes.call(name, probes.arguments_of(schema))
            calls = [right, probes.call(name, {}), probes.call(name, {"no such": [{}]})]
            calls.append(probes.call("no_such_tool", {}))
            for text in calls:
                played = await subject.play(Try(case, [text], f"a call of {name}"))
                results = [m for m in played.requests[-1] if m.get("role") == "tool"]
                missing = any(text_of(m).startswith(NO_TOOL) for m in results)
                if played.error or (missing and text is right):
                    offences.append(
                        played.evidence("" if played.error else f"{name} is not there")
                    )
    if not names:
        raise NothingCompared("no tools")
    return offences, f"{len(names)} tools"


async def hold(subject: Subject, one: Try, turn: int) -> tuple[float, str]:
    """Cancel a rollout while it waits for the model; seconds until its end, and how it ended."""
    session = RecordingSession(one.replies, hold_at=turn)
    rollout = asyncio.ensure_future(subject.rollouts.given(one.case.item, session))
    waiting = asyncio.ensure_future(session.held.wait())
    await asyncio.wait({rollout, waiting}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    started = asyncio.get_running_loop().time()
    rollout.cancel()
    await asyncio.wait({rollout}, timeout=2 * float(5))
    seconds = asyncio.get_running_loop().time() - started
    if not rollout.done():
        return seconds, "goes on"
    if rollout.cancelled():
        return seconds, ""
    if rollout.exception() is not None:
        return seconds, ""
    return seconds, "returns a score" if session.held.is_set() else ""


async def cancelled(subject: Subject, limit: float) -> Offences:
    """A rollout ends when it is cancelled, and returns no score."""
    offences = []
    for case in subject.cases[:2]:
        seconds, how = await hold(subject, Try(case, ""), 0)
        if how or seconds > limit:
            offences.append(Proof(case.id, note=f"a cancelled rollout {how or 'ends late'}"))
    hanging = [play for play in subject.played if play.hangs]
    return [*offences, *(play.evidence() for play in hanging)], "a cancelled rollout ends"


def leftovers() -> dict[str, int]:
    """Open descriptors, threads, children and temporary files of this process."""
    gc.collect()
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    pool = ("asyncio_", "ThreadPoolExecutor")  # threads of the event loop
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith(pool)]
    return {
        "descriptors": len(list(folder.iterdir())),
        "threads": len(threads),
        "children": children(),
        "temporary files": sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
        "files here": len(os.listdir(".")),
    }


def children() -> int:
    """Number of child processes, where the system lists processes in /proc."""
    parents = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process ended meanwhile
            parents.append(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    return parents.count(str(os.getpid()))


async def nothing_left(subject: Subject, limit: float) -> Offences:
    """Episodes leave nothing behind, even if cancelled."""
    tries = typical(subject, 4)
    await subject.play_all(tries)  # makes the objects that are made once
    count = max(5, min(EPISODES, int(10 / max(subject.pace_s, 0.001))))
    stages = {"ended": count, "cancelled": min(count, CANCELLED)}
    offences: list[Proof] = []
    for how, number in stages.items():
        before = leftovers()
        for i in range(number):
            attempt = tries[i % len(tries)]
            if how == "ended":
                await subject.play(attempt)
            else:
                await hold(subject, attempt, max(0, len(list(attempt.replies)) - 1))
        offences += await grown(before, number, limit, how)
    return offences, f"after {count} episodes and {stages['cancelled']} cancelled ones"


async def grown(before: dict[str, int], count: int, limit: float, how: str) -> list[Proof]:
    loop = asyncio.get_running_loop()
    until = loop.time() + GRACE_S
    while True:
        more = {kind: n - before[kind] for kind, n in leftovers().items()}
        over = {kind: n for kind, n in more.items() if n > max(1, limit * count)}
        if not over or loop.time() > until:
            break
        await asyncio.sleep(0.1)
    return [
        Proof("", note=f"{n} {kind} more after {count} {how} episodes")
        for kind, n in over.items()
    ]


def same_scores(ours: Sequence[Any], theirs: Sequence[Any], limit: float) -> list[Proof]:
    """Differences of [task, score, observations] of two processes."""
    known = {task: rest for task, *rest in theirs}
    diffs = []
    for task, score, seen in ours:
        if task not in known:
            diffs.append(Proof(task, note="another process has other tasks"))
        elif known[task] != [score, seen]:
            diffs.append(Proof(task, score=score, note=f"{known[task][0]} in another process"))
    return diffs


async def outcomes(subject: Subject, most: int) -> list[Any]:
    """[task, score, messages] of ``most`` gold replies, to be compared with another process."""
    played = await subject.play_all([Try(c, c.gold, "gold") for c in subject.golden[:most]])
    rows = [[outcome.case.id, outcome.score, observations(outcome)] for outcome in played]
    plain_rows: list[Any] = json.loads(json.dumps(rows))  # tuples become lists
    return plain_rows
