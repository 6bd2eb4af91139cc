"""Rules about batches, store, weights and requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atroposlib.run_status import evidence as ev
from atroposlib.run_status.evidence import Evidence, Lines, RuleMatch, detail_of, fix, rule

FULL = 0.95  # share of the bound on stored bytes
STALE = 0.2  # share of the accepted groups
REPEATED = 0.05
HALVED = 0.5  # share of the usual useful share
SLOW_STORE_S, SLOW_ANSWER_S = 0.3, 1.0  # the first is a bound of the histogram
LATE_CALLS = 5  # fewer late calls mean a busy moment
_MINIMUM = re.compile(r"at least (\d+) sequences of (.+?) \(env \d+\), but (\d+) are queued")
_SIZES = re.compile(r"\d+ of size (\d+)")
_EXACTLY = re.compile(r"makes exactly (\d+)")


def next_size(sizes: Sequence[int], least: int) -> int:
    """The smallest batch of at least ``least`` sequences that groups of these sizes make."""
    reached, total = {0}, 0
    while total < least or total not in reached:
        total += 1
        if any(total - size in reached for size in sizes):
            reached.add(total)
    return total


@rule(15, "stuck", "each batch needs sequences of an environment that sends none")
@fix(
    "restart it, or lower its min_batch_allocation; after 60 s of silence it no longer counts"
)
def minimum_unmet(e: Evidence) -> Lines:
    match = _MINIMUM.search(e.reason)
    if not match or not e.idle("batch") or e.grown("groups_in_total", env=match[2]):
        return []
    theirs = [
        process for process in e.processes if match[2].startswith(ev.shown_name(process))
    ]
    works = any(
        detail_of(process, "rollouts_running") and ev.silence_s(process) <= ev.SILENT_S
        for process in theirs
    )
    text = f"each batch needs {match[1]} sequences of {match[2]}, {match[3]} are queued"
    words = [text, *map(ev.activity_of, theirs)]
    slow = "each batch needs sequences of an environment that is slow"
    return RuleMatch(words, slow, severity="waiting") if works else words


@rule(40, "waiting", "an operator paused an environment")
@fix("atropos api steer NAME resume, when it should go on")
def paused_by_operator(e: Evidence) -> Lines:
    shares = [share for share in e.status.get("shares") or () if share.get("connected", True)]
    steered = {share["name"]: share.get("state", "running") for share in shares}
    words = {
        "paused": "is paused by an operator",
        "draining": "is being drained by an operator",
    }
    lines = [f"{name} {words[state]}" for name, state in steered.items() if state in words]
    if not lines or not e.started or not e.reason:
        return []
    name, more = (
        next(name for name, state in steered.items() if state in words),
        len(lines) - 1,
    )
    others = f" ({more} more alike)" if more else ""
    return RuleMatch(
        lines, remedy=f"atropos api steer {name} resume, when it should go on{others}"
    )


@rule(16, "stuck", "the minimum allocations do not fit into one batch")
@fix("lower min_batch_allocation, or raise the batch size")
def minima_impossible(e: Evidence) -> Lines:
    return _by_reason(e, "can never be met")


@rule(17, "stuck", "no combination of the group sizes makes one batch")
@fix("choose a batch size that the group sizes divide")
def sizes_do_not_divide(e: Evidence) -> Lines:
    lines, exactly = _by_reason(e, "choose a batch size"), _EXACTLY.search(e.reason)
    sizes = [size for size in map(int, _SIZES.findall(e.reason)) if size > 0]
    if lines and exactly and sizes:
        size = next_size(sizes, int(exactly[1]))
        return RuleMatch(lines, remedy=f"the next batch size that works: {size}")
    unfit = [text for text in e.status.get("warnings") or () if "fit no batch" in text]
    return lines or RuleMatch(unfit if e.still else [], severity="warning")


@rule(18, "stuck", "a group is larger than a batch")
@fix("raise the batch size, or lower --env.group_size")
def group_too_large(e: Evidence) -> Lines:
    return _by_reason(e, "larger than a batch")


def _by_reason(e: Evidence, part: str) -> list[str]:
    return [e.reason] if part in e.reason and e.still else []


@rule(19, "stuck", "posts are smaller than the registered group size")
@fix("post whole groups, or register the group size that is sent")
def partial_groups(e: Evidence) -> Lines:
    held, rest_s = e.count("buffered_sequences"), ev.LONG_S if e.running else ev.SILENT_S
    if not e.reason or not held or not e.idle("groups", rest_s) or e.age("batch") < rest_s:
        return []
    senders = (share for share in e.status.get("shares") or () if share.get("buffered"))
    waits = f"{held:.0f} sequences wait for the rest of their groups"
    return [
        waits,
        *(f"{sender['name']}: {sender['buffered']} sequences" for sender in senders),
    ]


@rule(22, "stuck", "a batch is delivered again and again: short lease, or crashes")
@fix("raise the trainer's lease_s above the seconds of a step; read its log")
def redelivered(e: Evidence) -> Lines:
    again = [batch for batch in e.status.get("open_batches") or () if batch["deliveries"] > 3]
    words = [f"batch {batch['no']}: delivery {batch['deliveries']}" for batch in again[:3]]
    if not words or e.grown("batches_acked_total"):
        return []
    return [*words, f"no ack for {e.age('acked'):.0f} s"]


@rule(23, "warning", "a batch was delivered too often and set aside")
@fix("atropos api dead lists it; atropos api dead revive NO delivers it again")
def dead_batches(e: Evidence) -> Lines:
    dead, groups = e.count("batches_dead"), e.count("dead_groups")
    return [f"{dead:.0f} batches, {groups:.0f} groups dead"] if dead or groups else []


@rule(24, "warning", "groups are too old when they are claimed")
@fix("lower --env.max_batches_offpolicy, or raise the trainer's max_staleness")
def stale_drops(e: Evidence) -> Lines:
    dropped, came = e.total("groups_stale_total"), e.total("groups_in_total")
    if dropped < 8 or dropped < STALE * came or e.age("dropped") > ev.FORGOTTEN_S:
        return []
    lags = e.status.get("staleness") or {}
    flight, queue = ((lags.get(p) or {}).get("mean", 0.0) for p in ("in_flight", "in_queue"))
    words = [f"{dropped:.0f} of {came:.0f} groups were dropped as stale"]
    words += [f"mean age in flight: {flight:.1f} versions, in queue: {queue:.1f}"]
    shorter = "shorter rollouts or fewer at once; raise max_staleness"
    return RuleMatch(words, remedy=shorter if flight > queue else "")


def _full(e: Evidence) -> list[str]:
    held, bound = e.count("retained_bytes"), e.count("max_bytes")
    refusal = e.status.get("refusal")
    if not (bound and held >= FULL * bound) and not refusal:
        return []
    text = f"{held / 1e6:.1f} of {bound / 1e6:.1f} MB held"
    return (
        [*([str(refusal)] if refusal else []), text, e.reason] if e.reason and e.still else []
    )


@rule(25, "stuck", "the store is full of batches that wait for a commit")
@fix("shorter checkpoint_interval of the trainer, or raise --max-store-gb of the API")
def never_committed(e: Evidence) -> Lines:
    return _full(e) if re.search(r"bytes \(\d+ by \d+ acked batches", e.reason) else []


@rule(26, "stuck", "the store is full, or its disk is up to the reserve")
@fix("free disk space, or raise --max-store-gb of the API")
def store_full(e: Evidence) -> Lines:
    return [] if never_committed(e) else _full(e)


@rule(27, "warning", "an inference server samples with old weights")
@fix("restart that server: the trainer loads the weights into it")
def versions_differ(e: Evidence) -> Lines:
    newest, since = e.count("policy_version"), e.age("policy_version")
    if since < e.oldest_rollout_s + ev.SILENT_S or e.phase == ev.PUBLISHING:
        return []  # tokens in flight may be of the version before
    held = {
        server["name"]: server["details"].get("version")
        for server in e.fresh("inference")
        if detail_of(server, "running") and not detail_of(server, "held")
    }
    behind = {url: at for url, at in held.items() if isinstance(at, int) and at < newest}
    text = f"version {newest:.0f} was announced {since:.0f} s ago"
    return [*(f"{url}: version {at}" for url, at in behind.items()), text] if behind else []


@rule(28, "warning", "logprobs of servers and trainer differ")
@fix("same model, dtype and chat template at both; docs: logprob_tolerance")
def mismatch(e: Evidence) -> Lines:
    nats, bound = detail_of(e.trainer, "mismatch"), detail_of(e.trainer, "mismatch_bound")
    differ = bound and nats > bound
    return [f"{nats:.2g} nats in the last step, tolerance {bound:.2g}"] if differ else []


@rule(29, "warning", "posts of another run, or without a valid token, are refused")
@fix("restart that environment, or correct its ATROPOS_API_TOKEN")
def foreign_posts(e: Evidence) -> Lines:
    words = {"404": "of another run", "401": "with a wrong token", "403": "without the scope"}
    grown = {s: e.grown("http_requests_total", status=s, method="POST") for s in words}
    lost = [
        f"{count:.0f} requests {words[s]} ({s})" for s, count in grown.items() if count > 1
    ]
    theirs = (
        ev.activity_of(environment)
        for environment in e.fresh("env")
        if environment["phase"] == ev.FOR_TRAINER
    )
    return [*lost, *theirs] if lost else []


@rule(31, "warning", "answers get lost: groups are posted again")
@fix("check proxies and timeouts between the environments and the API")
def repeated_posts(e: Evidence) -> Lines:
    again, new = e.grown("groups_duplicate_total"), e.grown("groups_in_total")
    text = f"{again:.0f} repeated and {new:.0f} new groups in {e.seconds:.0f} s"
    return [text] if again and again >= REPEATED * (again + new) else []


@rule(32, "warning", "the store or the host of the API is slow")
@fix("see disk and load of its host")
def slow_store(e: Evidence) -> Lines:
    calls = e.grown("store_seconds_count")
    late = calls - e.grown("store_seconds_bucket", le=f"{SLOW_STORE_S}")
    words = [f"{late:.0f} of {calls:.0f} calls of the store took over {SLOW_STORE_S} s"]
    words = words if late >= LATE_CALLS and late > 0.05 * calls else []
    slow = min(e.now.answer_s, e.before.answer_s) > SLOW_ANSWER_S
    return [*words, *([f"GET /status took {e.now.answer_s:.1f} s"] if slow else [])]


@rule(34, "warning", "the archive's disk is slow or full: records are skipped")
@fix("see that disk; --archive-gb bounds what is kept, and training goes on")
def index_behind(e: Evidence) -> Lines:
    skipped = e.change("index_skipped")
    return [f"{skipped:.0f} records in {e.seconds:.0f} s"] if skipped > 0 else []


@rule(36, "warning", "the index of rollouts cannot hold values of some records")
@fix("see the log of the API for the group; training goes on, the page lacks these rows")
def index_unfit(e: Evidence) -> Lines:
    unfit = e.count("index_unfit")
    return [f"{unfit:.0f} records since the API started"] if unfit > 0 else []


@rule(37, "warning", "a background thread of the API went on after a bug")
@fix("report the traceback in its log; groups, batches and training are not affected")
def thread_failed(e: Evidence) -> Lines:
    failures: dict[str, int] = e.status.get("thread_failures") or {}
    return [f"{name}: {count} times" for name, count in failures.items()]


@rule(41, "warning", "tokens of posted groups are in no row of the archive")
@fix("atropos account RUN --by env; see the log of the API: at rest this is damage, or a bug")
def tokens_unknown(e: Evidence) -> Lines:
    unknown, moving = e.tokens("unknown"), e.tokens("moving")
    # A balance from before the rest may miss rows that the index took meanwhile.
    at_rest = e.idle("groups", ev.SILENT_S + e.tokens("age_s"))
    if not at_rest or not 0 < e.tokens("unknown", e.before) <= unknown:
        return []
    return [f"{unknown:,.0f} tokens, with {moving:,.0f} under way and nothing in motion"]


@rule(42, "warning", "half as many sampled tokens are trained as before in this run")
@fix("atropos account RUN --by step shows the end states: correct what grew")
def useful_share_halved(e: Evidence) -> Lines:
    usual, recent = e.tokens("useful_usual"), e.tokens("useful_recent")
    losses = (e.status.get("tokens") or {}).get("recent_losses") or {}
    if not losses or recent > HALVED * usual:
        return []
    lost = [f"{share:.0%} {state}" for state, share in losses.items()]
    return [f"{recent:.0%} in the last steps, {usual:.0%} before", ", ".join(lost)]
