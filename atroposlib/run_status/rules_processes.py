"""Rules about processes: API, trainer, environments, inference servers. Pure."""

from __future__ import annotations

import re

from atroposlib.run_status import evidence as ev
from atroposlib.run_status.evidence import Evidence, Lines, RuleMatch, detail_of, fix, rule

OLD_TRAINER_S = 300.0  # time without a call of a trainer that sends no heartbeats
SLOW = 5.0  # times the median of a phase
SAME = 0.9  # share of dropped groups
CLOCK_S = 5.0
MANY_CUT = 8  # rollouts; and at least a rollout of each group
_OF_TEACHER = "the teacher "  # beginning of the wait of an environment
_OF_LAST = re.compile(r"(\d+) of the last (\d+) groups dropped, (\w+)")
_ROWS = "correct the rows: the environment's log names the field"
_OPTION = {
    "too_long": "raise --env.max_token_length and the trainer's seq_len, or lower max_tokens",
    "short": "see the failures of samples in the environment's log; --env.worker_timeout",
    "wrong_size": "return --env.group_size samples per item",
    "invalid": _ROWS,
    "malformed": _ROWS,
    "refused": "the environment's log has the answer of the rollout API",
}


# Part of the problem -> cause and remedy. An API that refuses a caller is at work.
_REFUSALS = {
    "status 401": ("the rollout API wants a token", "set ATROPOS_API_TOKEN to its token"),
    "status 403": (
        "the token has no right to read the status",
        "set ATROPOS_API_TOKEN to a token with the scope read",
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the certificate of the rollout API is not trusted",
        "set SSL_CERT_FILE to the certificate of the authority that signed it",
    ),
    "WRONG_VERSION_NUMBER": (
        "the rollout API answers without TLS",
        "write http:// in place of https:// in its address",
    ),
    "another program": (
        "another program answers at this address",
        "correct the address: --api-url, ATROPOS_API_URL",
    ),
}


@rule(1, "stuck", "the rollout API does not answer, or its store does not")
@fix("start it: atropos api serve --data-dir DIR; if it runs: its log, and its disk")
def api_silent(e: Evidence) -> Lines:
    problem = e.now.problem
    if not problem:
        return []
    cause, remedy = next(
        (words for part, words in _REFUSALS.items() if part in problem), ("", "")
    )
    return RuleMatch([f"{e.url}: {problem}"], cause, remedy)


@rule(2, "waiting", "no trainer has registered")
@fix("start it: atropos train grpo --atropos-url URL, with the address of this API")
def no_trainer(e: Evidence) -> Lines:
    absent = e.status.get("state") == "EMPTY" and not e.trainer
    return [f"{e.url}: state EMPTY", *map(ev.activity_of, e.fresh("env"))] if absent else []


@rule(3, "waiting", "the trainer is starting")
@fix("wait; if it names an inference server: atropos infer --model DIR --port PORT")
def trainer_starting(e: Evidence) -> Lines:
    return [ev.activity_of(e.trainer)] if e.trainer and not e.started else []


@rule(4, "stuck", "the trainer ended, froze, or cannot reach the API")
@fix("read its log and start it again: it resumes at its last batch")
def trainer_silent(e: Evidence) -> Lines:
    if e.trainer or e.status.get("state") in (None, "EMPTY") or e.count("batches_open"):
        return []
    trainers = [process for process in e.processes if process["role"] == "trainer"]
    ended = [
        trainer
        for trainer in trainers
        if "ended" in trainer["details"] and trainer["phase"] != "done"
    ]
    step = f"step {e.count('current_step'):.0f}, {e.count('batches_acked'):.0f} batches acked"
    if gone := e.silent("trainer") or ended:
        return [ev.last_words(gone[0]), step]
    old = not trainers and not e.reason and e.idle("batch", OLD_TRAINER_S)
    return (
        [f"a batch is ready, none was taken for {e.age('batch'):.0f} s", step] if old else []
    )


@rule(20, "stuck", "the trainer ended or froze with a batch in hand")
@fix("continue or end its process, and start it again: a new registration gets the batch now")
def trainer_silent_in_step(e: Evidence) -> Lines:
    if not (silent := e.silent("trainer")) or not e.count("batches_open"):
        return []
    leases = (
        f"batch {batch['no']}: {batch['sequences']} sequences, lease ends in {batch['lease_s']:.0f} s"
        for batch in e.status.get("open_batches") or ()
    )
    waits = (
        ev.activity_of(process) for process in e.fresh("env") if process["phase"] == ev.PAUSED
    )
    return [ev.last_words(silent[0]), *leases, *waits]


@rule(5, "stuck", "no environment sends groups: ended or frozen")
@fix("start it, or continue its process: atropos env run FILE serve")
def environment_silent(e: Evidence) -> Lines:
    silent, here = e.silent("env"), e.fresh("env")
    words = [ev.last_words(process) for process in silent]
    if here and e.started:
        return RuleMatch(words, "an environment ended or froze", severity="warning")
    if not e.started or not e.reason or not e.still:
        return []
    young = not silent and e.age("started") < ev.LONG_S
    words = words or ["no environment has a heartbeat here"]
    if young:
        return RuleMatch(
            words + [e.reason], "no environment has joined yet", severity="waiting"
        )
    return [*words[:3], e.reason]


@rule(6, "stuck", "an inference server is frozen or gone")
@fix("restart the server at this address; requests that wait are sent again")
def inference_silent(e: Evidence) -> Lines:
    words = [
        f"{server['name']}: no answer for {detail_of(server, 'silent_s'):.0f} s, "
        f"{detail_of(server, 'running'):.0f} requests wait"
        for server in e.silent("inference")
    ]
    if not words:
        return []
    others_answer = bool(e.fresh("inference")) and not e.still
    sent = f"{e.running:.0f} rollouts run, no group for {e.age('groups'):.0f} s"
    return RuleMatch([*words[:3], sent], severity="warning" if others_answer else None)


@rule(43, "stuck", "the teacher of an environment does not answer")
@fix("start its server; a busy one needs fewer requests: a shorter answer, a further server")
def teacher_silent(e: Evidence) -> Lines:
    lines = [
        f"{ev.shown_name(environment)} waits for {wait['on']} ({wait['age_s']:.0f} s)"
        for environment in e.fresh("env")
        for wait in environment.get("waits") or ()
        if str(wait["on"]).startswith(_OF_TEACHER)
    ]
    # Groups that still come show a teacher that is slow.
    return RuleMatch(lines, severity=None if e.idle("groups", ev.SILENT_S) else "waiting")


@rule(7, "waiting", "rollouts take long: the servers answer")
@fix("wait, or bound them: max_tokens of the request, --env.worker_timeout")
def long_generations(e: Evidence) -> Lines:
    late = e.oldest_rollout_s >= e.long_s and e.reason and e.idle("groups", e.long_s)
    failing = any(detail_of(environment, "failed_in_a_row") for environment in e.fresh("env"))
    if not late or failing or e.silent("inference"):
        return []
    rates = (
        f"{server['name']}: {detail_of(server, 'running'):.0f} requests, "
        f"{detail_of(server, 'tokens_per_s'):.0f} tokens/s"
        for server in e.fresh("inference")
    )
    return [f"{e.running:.0f} rollouts run, the oldest for {e.oldest_rollout_s:.0f} s", *rates]


@rule(8, "stuck", "inference servers are paused: a publish did not end")
@fix("see the trainer's log; POST /resume at the server once it holds its version")
def servers_paused(e: Evidence) -> Lines:
    paused = [
        f"{server['name']}: paused, {detail_of(server, 'running'):.0f} requests wait"
        for server in e.fresh("inference")
        if detail_of(server, "paused")
    ]
    late = _late(e)
    if not e.idle("groups") or not (late if e.phase == ev.PUBLISHING else paused):
        return []
    return [
        *paused,
        *late,
        ev.activity_of(e.trainer) if e.trainer else "no trainer has a heartbeat",
    ]


@rule(9, "stuck", "every rollout fails: the environment's code, or a judge")
@fix("correct the error; atropos env try FILE -n 1 shows it at once")
def rollouts_fail(e: Evidence) -> Lines:
    failing = [
        environment
        for environment in e.fresh("env")
        if detail_of(environment, "failed_in_a_row") >= 3 and e.still
    ]
    return [
        f"{environment['name']}: {detail_of(environment, 'failed_in_a_row'):.0f} failures in a row, last: "
        f"{environment['details'].get('last_error', 'unknown')}"
        for environment in failing
    ]


@rule(38, "warning", "rollouts fill the context of the model and are cut off")
@fix("a larger --max-model-len of the servers, a lower --env.max_tokens, or fewer turns")
def context_full(e: Evidence) -> Lines:
    full = [
        (env["name"], detail_of(env, "samples_context_full"), detail_of(env, "groups_sent"))
        for env in e.fresh("env")
    ]
    return [
        f"{name}: {cut:.0f} rollouts, with {sent:.0f} groups sent"
        for name, cut, sent in full
        if cut >= max(MANY_CUT, sent)
    ]


def _dropping(e: Evidence) -> list[tuple[str, float, str]]:
    """(reason, share, text) of environments that drop most groups, where none arrives."""
    if not e.idle("groups", max(ev.SILENT_S, 2 * e.oldest_rollout_s)):
        return []  # slow rollouts often pause for over 15 s
    texts = [
        str(environment.get("waiting_on"))
        for environment in e.fresh("env")
        if environment["phase"] == ev.DROPPING
    ]
    matches = [(lost, text) for text in texts if (lost := _OF_LAST.search(text))]
    return [(lost[3], int(lost[1]) / int(lost[2]), text) for lost, text in matches]


@rule(10, "stuck", "groups are dropped: all samples of an item score the same")
@fix("easier or harder items, a curriculum, or --env.ensure_scores_are_not_same false")
def same_scores(e: Evidence) -> Lines:
    return [t for why, share, t in _dropping(e) if why == "same_scores" and share >= SAME]


@rule(11, "stuck", "groups are dropped before they are sent")
@fix("; ".join(f"{reason}: {option}" for reason, option in _OPTION.items()))
def groups_dropped(e: Evidence) -> Lines:
    reasons = [(why, text) for why, _, text in _dropping(e) if why != "same_scores"]
    return RuleMatch(
        [t for _, t in reasons], remedy=_OPTION.get(reasons[0][0], "") if reasons else ""
    )


@rule(12, "stuck", "admission waits for a batch that cannot form")
@fix("raise the trainer's max_staleness, or lower --env.group_size")
def not_admitted(e: Evidence) -> Lines:
    waits = e.envs_all(ev.NOT_ADMITTED) and e.phase == ev.FOR_BATCH and e.idle("batch")
    return [e.reason, *map(ev.activity_of, e.fresh("env"))] if waits else []


@rule(13, "waiting", "the queue is full while the trainer is at work")
@fix("nothing is wrong; fewer inference servers would do, or a faster trainer")
def trainer_bound(e: Evidence) -> Lines:
    busy = e.trainer and e.phase != ev.FOR_BATCH and e.idle("acked", e.long_s)
    queued = f"{e.count('queued_sequences'):.0f} sequences queued"
    return (
        [queued, ev.activity_of(e.trainer)]
        if e.trainer and busy and e.envs_all(ev.PAUSED)
        else []
    )


@rule(44, "waiting", "the trainer waits for an evaluation")
@fix(
    "wait; evaluation: {where: held} or dir lets training go on, evaluation_timeout_s bounds it"
)
def trainer_evaluates(e: Evidence) -> Lines:
    evaluation = ev.evaluation_text(e.trainer) if e.trainer else ""
    if e.phase != ev.EVALUATING or not evaluation or not e.idle("acked"):
        return []
    return [evaluation, ev.activity_of(e.trainer) if e.trainer else ""]


@rule(14, "stuck", "environments see a full queue that makes no batch")
@fix("choose a batch size that the group sizes divide; raise --env.max_batches_offpolicy")
def full_without_batch(e: Evidence) -> Lines:
    waits = e.envs_all(ev.PAUSED) and e.phase == ev.FOR_BATCH and e.reason and e.idle("batch")
    return [e.reason, *map(ev.activity_of, e.fresh("env"))] if waits else []


def _late(e: Evidence) -> list[str]:
    """The trainer's phase if it lasts much longer than its median."""
    spent, median = detail_of(e.trainer, "phase_s"), detail_of(e.trainer, "phase_median_s")
    late = spent >= max(ev.LONG_S, SLOW * median)
    return [f"{e.phase} for {spent:.0f} s, median {median:.1f} s"] if late else []


@rule(21, "stuck", "a step takes much longer than the median step")
@fix("see the trainer's log, memory and the other ranks")
def slow_step(e: Evidence) -> Lines:
    at_work = e.phase in ("training", "checking servers") and e.count("batches_open")
    known = detail_of(e.trainer, "phase_median_s") and e.idle("acked")
    waits = e.trainer and e.trainer.get("waiting_on")
    late = _late(e) if at_work and known else []
    return [*late, f"waits for {waits}"] if late and waits else late


@rule(30, "stuck", "environments wait here, and a run goes on at another API")
@fix("give both the same address: --env.rollout_server_url and the trainer's --atropos-url")
def two_apis(e: Evidence) -> Lines:
    waiting = [
        ev.activity_of(environment)
        for environment in e.fresh("env")
        if environment["phase"] == ev.FOR_TRAINER
    ]
    if e.started or not waiting or not e.now.elsewhere:
        return []
    return [f"{e.url}: {waiting[0]}", *(f"{url}: STARTED" for url in e.now.elsewhere)]


def _clocks(sample: ev.RunSample) -> dict[str, float]:
    """Seconds by which the clocks of processes are behind; a late heartbeat counts as well."""
    processes = (sample.status or {}).get("participants") or ()
    with_clock = [
        process
        for process in processes
        if detail_of(process, "clock") and process["age_s"] <= ev.SILENT_S
    ]
    return {
        process["name"]: sample.at - process["age_s"] - detail_of(process, "clock")
        for process in with_clock
    }


@rule(33, "warning", "clocks differ: times in logs and files disagree")
@fix("synchronise the clocks of both machines (NTP)")
def clocks_differ(e: Evidence) -> Lines:
    before = _clocks(e.before)
    off = {name: min(by, before.get(name, by), key=abs) for name, by in _clocks(e.now).items()}
    return [f"{name}: {by:+.0f} s" for name, by in off.items() if abs(by) > CLOCK_S]


@rule(39, "warning", "most groups of an environment are dropped")
@fix(
    "atropos env try FILE -n 1 shows a group; the environment's log names each that is dropped"
)
def mostly_dropped(e: Evidence) -> Lines:
    lines = [
        f"{ev.shown_name(environment)}: {environment.get('waiting_on')}"
        for environment in e.fresh("env")
        if environment["phase"] == ev.DROPPING
    ]
    reasons = [lost[3] for line in lines if (lost := _OF_LAST.search(line))]
    return RuleMatch(lines, remedy=_OPTION.get(reasons[0], "") if reasons else "")


@rule(35, "waiting", "the run is complete")
@fix("the model is in the trainer's save_path, final_model; the report in the run's folder")
def complete(e: Evidence) -> Lines:
    trainers = [process for process in e.processes if process["role"] == "trainer"]
    latest = min(trainers, key=ev.silence_s, default=None)
    ended = e.status.get("ended_step")
    said_so = latest is not None and latest["phase"] == "done" and e.still
    if ended is None and not said_so:
        return []
    name = ev.label_of(latest) if latest else "the trainer"
    at = e.count("current_step") if ended is None else float(ended)
    of = f" of {e.count('num_steps'):.0f}" if e.status.get("num_steps") else ""
    return [f"{name}: done at step {at:.0f}{of}", *map(ev.activity_of, e.fresh("env"))]
