"""Rules about processes: API, trainer, environments, inference servers. Pure."""

from __future__ import annotations

import re

from atroposlib.doctor.evidence import (
    DROPPING,
    FOR_BATCH,
    FOR_TRAINER,
    FORGOTTEN_S,
    NOT_ADMITTED,
    PAUSED,
    SILENT_S,
    Evidence,
    doing,
    label,
    last_words,
    listed,
    number,
)
from atroposlib.doctor.rule import Found, rule

OLD_TRAINER_S = 300.0  # without a call of a trainer that sends no heartbeats
FROZEN_S = 4.0  # without a group, while a server accepts connections and answers nothing
LONG_S = 60.0  # of one rollout, or of one phase of the trainer
SLOW = 5.0  # times the median of a phase
SAME = 0.9  # share of dropped groups
_OF_LAST = re.compile(r"(\d+) of the last (\d+) groups dropped, (\w+)")
_OPTION = {
    "too_long": "raise --env.max_token_length and the trainer's seq_len, or lower max_tokens",
    "short": "see the failures of samples in the environment's log; --env.worker_timeout",
    "wrong_size": "return --env.group_size samples per item",
    "invalid": "correct the rows: the environment's log names the field",
    "malformed": "correct the rows: the environment's log names the field",
    "refused": "the environment's log has the answer of the rollout API",
}


@rule(
    *(1, "api-silent", "stuck", "the rollout API does not answer, or its store does not"),
    "start it: atropos api serve --data-dir DIR; if it runs: its log, and its disk",
)
def api_silent(e: Evidence) -> Found | None:
    return Found([f"{e.url}: {e.now.problem}"]) if e.now.problem else None


@rule(
    *(2, "no-trainer", "waiting", "no trainer has registered"),
    "start it: atropos train grpo --atropos-url URL, with the address of this API",
)
def no_trainer(e: Evidence) -> Found | None:
    if e.status.get("state") != "EMPTY" or e.trainer:
        return None
    waiting = [doing(one) for one in e.fresh("env")]
    return Found([f"{e.url}: state EMPTY", *listed(waiting)])


@rule(
    *(3, "trainer-starting", "waiting", "the trainer is starting"),
    "wait; if it names an inference server: atropos infer --model DIR --port PORT",
)
def trainer_starting(e: Evidence) -> Found | None:
    if e.started or not e.status or e.trainer is None:
        return None
    return Found([doing(e.trainer)])


@rule(
    *(4, "trainer-silent", "stuck", "the trainer ended, froze, or cannot reach the API"),
    "read its log and start it again: it resumes at its last batch",
)
def trainer_silent(e: Evidence) -> Found | None:
    if e.trainer or e.status.get("state") in (None, "EMPTY") or e.count("batches_open"):
        return None
    trainers = [one for one in e.processes if one["role"] == "trainer"]
    ended = [one for one in trainers if "ended" in one["details"] and one["phase"] != "done"]
    gone = e.silent("trainer") or ended
    step = f"step {e.count('current_step'):.0f}, {e.count('batches_acked'):.0f} batches acked"
    if gone:
        return Found([*map(last_words, gone[:1]), step])
    if trainers or not e.idle("batch", OLD_TRAINER_S) or e.reason:
        return None
    return Found([f"a batch is ready, and none was taken for {e.age('batch'):.0f} s", step])


@rule(
    *(
        20,
        "trainer-silent-in-step",
        "stuck",
        "the trainer ended or froze with a batch in hand",
    ),
    "continue or end its process, and start it again: a new registration gets the batch now",
)
def silent_in_step(e: Evidence) -> Found | None:
    silent = e.silent("trainer")
    if e.trainer or not silent or not e.count("batches_open"):
        return None
    leases = [
        f"batch {one['no']}: {one['sequences']} sequences, lease ends in {one['lease_s']:.0f} s"
        for one in e.status.get("open_batches") or ()
    ]
    waits = [doing(one) for one in e.fresh("env") if one["phase"] == PAUSED]
    return Found([last_words(silent[0]), *listed(leases), *waits[:1]])


@rule(
    *(5, "environment-silent", "stuck", "no environment sends groups: ended or frozen"),
    "start it, or continue its process: atropos env run FILE serve",
)
def environment_silent(e: Evidence) -> Found | None:
    if not e.started:
        return None
    silent, here = e.silent("env"), e.fresh("env")
    recent = [one for one in silent if one["age_s"] < FORGOTTEN_S]
    short = bool(e.reason)
    if here and recent:
        words = listed(map(last_words, recent))
        return Found(words, "an environment ended or froze", severity="warning")
    if here or not short or not e.still:
        return None
    words = listed(map(last_words, silent)) or ("no environment has a heartbeat here",)
    young = not silent and e.age("started") < LONG_S
    return Found([*words, e.reason], severity="waiting" if young else None)


@rule(
    *(6, "inference-silent", "stuck", "an inference server is frozen or gone"),
    "restart the server at this address; requests that wait are sent again",
)
def inference_silent(e: Evidence) -> Found | None:
    silent, answering = e.servers(silent=True), e.servers(silent=False)
    words = [
        f"{one['name']}: no answer for {number(one, 'silent_s'):.0f} s, "
        f"{number(one, 'running'):.0f} requests wait"
        for one in silent
    ]
    if not silent and e.idle("groups", FROZEN_S):  # callers notice it later
        both = e.before.servers.keys() & e.now.servers.keys()
        frozen = {url: e.now.servers[url].get("frozen") for url in sorted(both)}
        words = [f"{url}: {why}" for url, why in frozen.items() if why]
    if not words:
        return None
    others = bool(answering) and not e.still
    sent = (
        f"{e.sum('rollouts_running'):.0f} rollouts run, no group for {e.age('groups'):.0f} s"
    )
    return Found([*listed(words), sent], severity="warning" if others else None)


@rule(
    *(7, "long-generations", "waiting", "rollouts take long: the servers answer"),
    "wait, or bound them: max_tokens of the request, --env.worker_timeout",
)
def long_generations(e: Evidence) -> Found | None:
    oldest = max((number(one, "oldest_rollout_s") for one in e.fresh("env")), default=0.0)
    if not e.reason or oldest < LONG_S or not e.idle("groups", LONG_S):
        return None
    if e.servers(silent=True) or e.sum("failed_in_a_row"):
        return None
    words = [f"{e.sum('rollouts_running'):.0f} rollouts run, the oldest for {oldest:.0f} s"]
    words += [
        f"{one['name']}: {number(one, 'running'):.0f} requests, "
        f"{number(one, 'tokens_per_s'):.0f} tokens/s"
        for one in e.servers(silent=False)
    ]
    return Found([words[0], *listed(words[1:])])


@rule(
    *(8, "servers-paused", "stuck", "inference servers are paused: a publish did not end"),
    "see the trainer's log; POST /resume at the server once it holds its version",
)
def servers_paused(e: Evidence) -> Found | None:
    paused = [
        f"{url}: paused with version {info.get('weight_version')}"
        for url, info in e.now.servers.items()
        if info.get("paused") and e.before.servers.get(url, {}).get("paused")
    ]
    publishing = e.phase == "publishing weights" and bool(_late(e))
    if not e.still or not (publishing or (paused and e.phase != "publishing weights")):
        return None
    trainer = [doing(e.trainer)] if e.trainer else ["no trainer has a heartbeat"]
    return Found([*listed(paused), *_late(e), *trainer])


@rule(
    *(9, "rollouts-fail", "stuck", "every rollout fails: the environment's code, or a judge"),
    "correct the error; atropos env try FILE -n 1 shows it at once",
)
def rollouts_fail(e: Evidence) -> Found | None:
    failing = [one for one in e.fresh("env") if number(one, "failed_in_a_row") >= 3]
    if not failing or not e.still:
        return None
    return Found(
        [
            f"{one['name']}: {number(one, 'failed_in_a_row'):.0f} failures in a row, last: "
            f"{one['details'].get('last_error', 'unknown')}"
            for one in failing[:3]
        ]
    )


def _dropping(e: Evidence, same: bool) -> list[str]:
    """Environments most of whose groups are dropped, for equal scores or for other reasons."""
    found = []
    for one in e.fresh("env"):
        lost = _OF_LAST.search(str(one.get("waiting_on")))
        if one["phase"] != DROPPING or lost is None or (lost[3] == "same_scores") is not same:
            continue
        if not same or int(lost[1]) >= SAME * int(lost[2]):
            found.append(f"{one['name']}: {one['waiting_on']}")
    return found if e.idle("groups") else []


@rule(
    *(10, "same-scores", "stuck", "groups are dropped: all samples of an item score the same"),
    "easier or harder items, a curriculum, or --env.ensure_scores_are_not_same false",
)
def same_scores(e: Evidence) -> Found | None:
    return Found(listed(found)) if (found := _dropping(e, same=True)) else None


@rule(
    *(11, "groups-dropped", "stuck", "groups are dropped before they are sent"),
    "; ".join(f"{reason}: {option}" for reason, option in _OPTION.items()),
)
def groups_dropped(e: Evidence) -> Found | None:
    if not (found := _dropping(e, same=False)):
        return None
    lost = _OF_LAST.search(found[0])
    return Found(listed(found), remedy=_OPTION.get(lost[3] if lost else "", ""))


@rule(
    *(12, "not-admitted", "stuck", "admission waits for a batch that cannot form"),
    "raise the trainer's max_staleness, or lower --env.group_size",
)
def not_admitted(e: Evidence) -> Found | None:
    here = e.fresh("env")
    refused = [doing(one) for one in here if one["phase"] == NOT_ADMITTED]
    if not refused or len(refused) < len(here) or e.phase != FOR_BATCH or not e.idle("batch"):
        return None
    return Found([*listed(refused), e.reason])


def _all_paused(e: Evidence) -> bool:
    here = e.fresh("env")
    return bool(here) and all(one["phase"] == PAUSED for one in here)


@rule(
    *(13, "trainer-bound", "waiting", "the queue is full while the trainer is at work"),
    "nothing is wrong; fewer inference servers would do, or a faster trainer",
)
def trainer_bound(e: Evidence) -> Found | None:
    busy = e.trainer is not None and e.phase != FOR_BATCH
    if not _all_paused(e) or not busy or not e.idle("acked", LONG_S):
        return None
    queued = f"{e.count('queued_sequences'):.0f} sequences queued"
    return Found([queued, *map(doing, e.fresh("trainer")[:1])])


@rule(
    *(14, "full-without-batch", "stuck", "environments see a full queue that makes no batch"),
    "choose a batch size that the group sizes divide; raise --env.max_batches_offpolicy",
)
def full_without_batch(e: Evidence) -> Found | None:
    if not _all_paused(e) or e.phase != FOR_BATCH or not e.reason or not e.idle("batch"):
        return None
    return Found([e.reason, *listed(map(doing, e.fresh("env")))])


def _late(e: Evidence) -> list[str]:
    """The trainer's phase if it lasts much longer than its median."""
    if e.trainer is None:
        return []
    spent, median = number(e.trainer, "phase_s"), number(e.trainer, "phase_median_s")
    if spent < max(LONG_S, SLOW * median):
        return []
    return [f"{e.phase} for {spent:.0f} s, median {median:.1f} s"]


@rule(
    *(21, "slow-step", "stuck", "a step takes much longer than the median step"),
    "see the trainer's log, memory and the other ranks",
)
def slow_step(e: Evidence) -> Found | None:
    at_work = e.phase in ("training", "checking servers")
    median = number(e.trainer, "phase_median_s") if e.trainer else 0.0
    if not e.count("batches_open") or not at_work or not median or not e.idle("acked"):
        return None
    waits = e.trainer and e.trainer.get("waiting_on")
    return (
        Found([*late, *([f"waits for {waits}"] if waits else [])])
        if (late := _late(e))
        else None
    )


@rule(
    *(30, "two-apis", "stuck", "environments wait here, and a run goes on at another API"),
    "give both the same address: --env.rollout_server_url and the trainer's --atropos-url",
)
def two_apis(e: Evidence) -> Found | None:
    waiting = [doing(one) for one in e.fresh("env") if one["phase"] == FOR_TRAINER]
    if e.started or not waiting or not e.now.elsewhere:
        return None
    return Found([f"{e.url}: {waiting[0]}", *(f"{url}: STARTED" for url in e.now.elsewhere)])


@rule(
    *(33, "clocks-differ", "warning", "clocks differ: times in logs and files disagree"),
    "synchronise the clocks of both machines (NTP)",
)
def clocks_differ(e: Evidence) -> Found | None:
    off = {
        str(one["name"]): e.now.at - one["age_s"] - number(one, "clock")
        for one in e.processes
        if number(one, "clock") and one["age_s"] <= SILENT_S
    }
    wrong = [f"{name}: {by:+.0f} s" for name, by in off.items() if abs(by) > 5]
    return Found(listed(wrong)) if wrong else None


@rule(
    *(35, "complete", "waiting", "the run is complete"),
    "the model is in the trainer's save_path, final_model; the report in the folder of the run",
)
def complete(e: Evidence) -> Found | None:
    trainers = [one for one in e.processes if one["role"] == "trainer"]
    latest = min(trainers, key=lambda one: float(one["age_s"]), default=None)
    if latest is None or latest["phase"] != "done" or not e.still:
        return None
    left = [doing(one) for one in e.fresh("env")]
    return Found(
        [f"{label(latest)}: done at step {e.count('current_step'):.0f}", *listed(left)]
    )
