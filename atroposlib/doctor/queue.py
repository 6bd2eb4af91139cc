"""Rules about batches, store, weights and requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atroposlib.doctor.evidence import (
    FOR_TRAINER,
    FORGOTTEN_S,
    SILENT_S,
    Evidence,
    doing,
    label,
    listed,
    number,
)
from atroposlib.doctor.rule import Found, rule

FULL = 0.95  # of the bound on stored bytes
STALE = 0.2  # share of the accepted groups
REPEATED = 0.05
SLOW_STORE_S, SLOW_ANSWER_S = 0.5, 1.0
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


@rule(
    *(
        15,
        "minimum-unmet",
        "stuck",
        "each batch needs sequences of an environment that sends none",
    ),
    "restart it, or lower its min_batch_allocation; after 300 s of silence it no longer counts",
)
def minimum_unmet(e: Evidence) -> Found | None:
    found = _MINIMUM.search(e.reason)
    if not found or not e.idle("batch") or e.grown("groups_in_total", env=found[2]):
        return None
    theirs = [doing(one) for one in e.processes if found[2].startswith(label(one))]
    text = f"each batch needs {found[1]} sequences of {found[2]}, {found[3]} are queued"
    return Found([text, *listed(theirs)])


@rule(
    *(16, "minima-impossible", "stuck", "the minimum allocations do not fit into one batch"),
    "lower min_batch_allocation, or raise the batch size",
)
def minima_impossible(e: Evidence) -> Found | None:
    return _by_reason(e, "can never be met")


@rule(
    *(17, "sizes-do-not-divide", "stuck", "no combination of the group sizes makes one batch"),
    "choose a batch size that the group sizes divide",
)
def sizes_do_not_divide(e: Evidence) -> Found | None:
    found = _by_reason(e, "choose a batch size")
    sizes, exactly = [int(size) for size in _SIZES.findall(e.reason)], _EXACTLY.search(
        e.reason
    )
    if found and exactly and sizes and min(sizes) > 0:
        remedy = f"the next batch size that works: {next_size(sizes, int(exactly[1]))}"
        return found._replace(remedy=remedy)
    unfit = [text for text in e.status.get("warnings") or () if "fit no batch" in text]
    return found or (Found(listed(unfit), severity="warning") if unfit and e.still else None)


@rule(
    *(18, "group-too-large", "stuck", "a group is larger than a batch"),
    "raise the batch size, or lower --env.group_size",
)
def group_too_large(e: Evidence) -> Found | None:
    return _by_reason(e, "larger than a batch")


def _by_reason(e: Evidence, part: str) -> Found | None:
    return Found([e.reason]) if part in e.reason and e.still else None


@rule(
    *(19, "partial-groups", "stuck", "posts are smaller than the registered group size"),
    "post whole groups, or register the group size that is sent",
)
def partial_groups(e: Evidence) -> Found | None:
    held, before = e.count("buffered_sequences"), (e.before.status or {})
    if not e.reason or not held or held < float(before.get("buffered_sequences") or 0):
        return None
    senders = [
        f"{one['name']}: {one['buffered']} sequences"
        for one in e.status.get("shares") or ()
        if one.get("buffered")
    ]
    waits = f"{held:.0f} sequences wait for the rest of their groups"
    return Found([waits, *listed(senders)]) if e.age("batch") > SILENT_S else None


@rule(
    *(
        22,
        "redelivered",
        "stuck",
        "a batch is delivered again and again: short lease, or crashes",
    ),
    "raise the trainer's lease_s above the seconds of a step; read its log",
)
def redelivered(e: Evidence) -> Found | None:
    again = [one for one in e.status.get("open_batches") or () if one["deliveries"] > 3]
    if e.grown("batches_acked_total") or not again:
        return None
    words = [f"batch {one['no']}: delivery {one['deliveries']}" for one in again]
    return Found([*listed(words), f"no ack for {e.age('acked'):.0f} s"])


@rule(
    *(23, "dead-batches", "warning", "a batch was delivered too often and set aside"),
    "atropos api dead lists it; atropos api dead revive NO delivers it again",
)
def dead_batches(e: Evidence) -> Found | None:
    dead, groups = e.count("batches_dead"), e.count("dead_groups")
    return Found([f"{dead:.0f} batches, {groups:.0f} groups dead"]) if dead or groups else None


@rule(
    *(24, "stale-drops", "warning", "groups are too old when they are claimed"),
    "lower --env.max_batches_offpolicy, or raise the trainer's max_staleness",
)
def stale_drops(e: Evidence) -> Found | None:
    dropped, came = e.total("groups_stale_total"), e.total("groups_in_total")
    if dropped < 8 or dropped < STALE * came or e.age("dropped") > FORGOTTEN_S:
        return None
    lags = e.status.get("staleness") or {}
    means = {
        part: (lags.get(part) or {}).get("mean", 0.0) for part in ("in_flight", "in_queue")
    }
    words = [f"{dropped:.0f} of {came:.0f} groups were dropped as stale"]
    words += [
        f"mean age {part.replace('_', ' ')}: {lag:.1f} versions" for part, lag in means.items()
    ]
    if means["in_flight"] > means["in_queue"]:
        return Found(words, remedy="shorter rollouts or fewer at once; raise max_staleness")
    return Found(words)


def _full(e: Evidence) -> list[str]:
    held, bound = e.count("retained_bytes"), e.count("max_bytes")
    refused = e.grown("requests_refused_total", reason="store_full")
    if not (bound and held >= FULL * bound) and not refused:
        return []
    text = f"{held / 1e6:.1f} of {bound / 1e6:.1f} MB held, {refused:.0f} posts refused"
    return [text, e.reason] if e.reason and e.still else []


@rule(
    *(25, "never-committed", "stuck", "the store is full of batches that wait for a commit"),
    "shorter checkpoint_interval of the trainer, or raise --max-store-gb of the API",
)
def never_committed(e: Evidence) -> Found | None:
    if not (found := _full(e)):
        return None
    held = re.search(r"bytes \((\d+) by \d+ acked batches", e.reason)
    return Found(found) if held else None


@rule(
    *(26, "store-full", "stuck", "the store is full, or its disk is up to the reserve"),
    "free disk space, or raise --max-store-gb of the API",
)
def store_full(e: Evidence) -> Found | None:
    return Found(found) if (found := _full(e)) and not never_committed(e) else None


@rule(
    *(27, "versions-differ", "stuck", "an inference server samples with old weights"),
    "restart that server: the trainer loads the weights into it",
)
def versions_differ(e: Evidence) -> Found | None:
    newest, since = e.count("policy_version"), e.age("policy_version")
    oldest = max((number(one, "oldest_rollout_s") for one in e.fresh("env")), default=0.0)
    if since < oldest + SILENT_S or e.phase == "publishing weights":
        return None  # tokens in flight may be of the version before
    behind = []
    for one in e.servers(silent=False):
        info = e.now.servers.get(str(one["name"]).removesuffix("/v1"), {})
        version = info.get("weight_version", one["details"].get("version"))
        if isinstance(version, int) and version < newest and number(one, "running"):
            behind.append(f"{one['name']}: version {version}")
    text = f"version {newest:.0f} was announced {since:.0f} s ago"
    return Found([*listed(behind), text], severity="warning") if behind else None


@rule(
    *(28, "mismatch", "warning", "logprobs of servers and trainer differ"),
    "same model, dtype and chat template at both; docs: logprob_tolerance",
)
def mismatch(e: Evidence) -> Found | None:
    nats = number(e.trainer, "mismatch") if e.trainer else 0.0
    bound = number(e.trainer, "mismatch_bound") if e.trainer else 0.0
    if not bound or nats <= bound:
        return None
    return Found([f"{nats:.2g} nats in the last step, tolerance {bound:.2g}"])


@rule(
    *(
        29,
        "foreign-posts",
        "warning",
        "posts of another run, or without a valid token, are refused",
    ),
    "restart that environment, or correct its ATROPOS_API_TOKEN",
)
def foreign_posts(e: Evidence) -> Found | None:
    words = {"404": "of another run", "401": "with a wrong token", "403": "without the scope"}
    grown = {
        status: e.grown("http_requests_total", status=status, method="POST")
        for status in words
    }
    lost = [
        f"{count:.0f} requests {words[s]} ({s})" for s, count in grown.items() if count > 1
    ]
    theirs = [doing(one) for one in e.fresh("env") if one["phase"] == FOR_TRAINER]
    return Found([*lost, *listed(theirs)]) if lost else None


@rule(
    *(31, "repeated-posts", "warning", "answers get lost: groups are posted again"),
    "check proxies and timeouts between the environments and the API",
)
def repeated_posts(e: Evidence) -> Found | None:
    again, new = e.grown("groups_duplicate_total"), e.grown("groups_in_total")
    if not again or again < REPEATED * (again + new):
        return None
    return Found([f"{again:.0f} repeated and {new:.0f} new groups in {e.seconds:.0f} s"])


@rule(
    *(32, "slow-store", "warning", "the store or the host of the API is slow"),
    "see disk and load of its host",
)
def slow_store(e: Evidence) -> Found | None:
    calls = e.grown("store_seconds_count")
    fast = e.grown("store_seconds_bucket", le="0.3")
    words = []
    if calls >= 5 and fast < 0.95 * calls:
        words.append(f"{calls - fast:.0f} of {calls:.0f} calls of the store took over 0.3 s")
    if min(e.now.answer_s, e.before.answer_s) > SLOW_ANSWER_S:
        words.append(f"GET /status took {e.now.answer_s:.1f} s")
    return Found(words) if words else None


@rule(
    *(
        34,
        "index-behind",
        "warning",
        "the archive's disk is slow or full: records are skipped",
    ),
    "see that disk; --archive-gb bounds what is kept, and training goes on",
)
def index_behind(e: Evidence) -> Found | None:
    skipped = e.count("index_skipped") - float(
        (e.before.status or {}).get("index_skipped") or 0
    )
    return Found([f"{skipped:.0f} records in {e.seconds:.0f} s"]) if skipped > 0 else None
