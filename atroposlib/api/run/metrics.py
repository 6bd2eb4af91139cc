"""Prometheus metrics: groups in, batches out, staleness, latencies of requests and store.

Counters belong to this process and add up over replicas. Gauges are read from the store at
each scrape and are the same on every replica. An environment is labelled by its name, for
the first ``MAX_ENVS`` names: a label value costs memory for the life of the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from threading import Lock
from time import monotonic
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase as Collector
from prometheus_client.process_collector import ProcessCollector

from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.records import LeasedBatch, Stored
from atroposlib.run_status.evidence import CounterValue
from atroposlib.utils.metrics import percentile
from atroposlib.wire import Lag, RunStatus, StalenessReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_ENVS = 200
OTHER = "other"  # label of every environment beyond MAX_ENVS
NO_ENV = "none"  # groups that name no environment
STALENESS_WINDOW = 1000  # groups
_VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60)
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})

# Creation times would double the page, and no dashboard uses creation times.
disable_created_metrics()  # type: ignore[no-untyped-call]

T = TypeVar("T")


class Metrics:
    """Metrics of an app, in a separate registry, so that two apps of a process never mix.

    Args:
        name_of: the ``wandb_name`` of an env id of the current run; None if it has none.
    """

    def __init__(self, name_of: Callable[[int], str | None] = str) -> None:
        self._name_of = name_of
        self._labels: set[str] = set()
        # A look-up by labels costs more than the update; all labels are of bounded sets.
        self._labelled = cache(lambda metric, *labels: metric.labels(*labels))
        self._lags: deque[tuple[int, int]] = deque(maxlen=STALENESS_WINDOW)
        self._scrape = Lock()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._make_counters()
        self._make_histograms()
        gauge = partial(Gauge, namespace="atropos", registry=self._registry)
        self.requests_in_flight = gauge("http_in_flight", "requests being answered")
        self._gauges = _Gauges(gauge)

    def _make_counters(self) -> None:
        counter = partial(Counter, namespace="atropos", registry=self._registry)
        env = ("env",)
        self._groups = counter("groups_in", "groups accepted", ("env", "media"))
        self._bytes = counter("bytes_in", "payload bytes accepted", ("env", "media"))
        self._sequences = counter("sequences_in", "sequences accepted", env)
        self._tokens = counter("tokens_in", "trained tokens accepted", env)
        self._duplicates = counter("groups_duplicate", "repeated groups absorbed", env)
        self.marked = counter("groups_marked", "groups let pass with an oddity", ("mark",))
        self.uncertified = counter(
            "groups_uncertified", "groups with a refuted or absent claim", ("claim", "policy")
        )
        self.refused = counter("requests_refused", "refusals, by their word", ("reason",))
        self._delivered = counter("batches_delivered", "batches handed over first")
        self._redelivered = counter("batches_redelivered", "batches handed over again")
        self._stale = counter("groups_stale", "groups freed as too old by a claim")
        self.acked = counter("batches_acked", "batches that were trained on")
        self.committed = counter("batches_committed", "batches freed by a checkpoint")
        self._requests = counter("http_requests", "answers", ("method", "route", "status"))

    def _make_histograms(self) -> None:
        versions = partial(
            Histogram, namespace="atropos", registry=self._registry, buckets=_VERSIONS
        )
        self._in_flight = versions(
            "staleness_in_flight", "policy versions between sampling and arrival"
        )
        self._in_queue = versions(
            "staleness_in_queue", "policy versions between arrival and claim"
        )
        seconds = partial(versions, buckets=_SECONDS)
        self._latency = seconds(
            "http_seconds", "from the first byte in to the last out", ("route",)
        )
        self._store = seconds("store_seconds", "calls of the store", ("call",))

    @property
    def _compared(self) -> Sequence[Collector]:
        """Counters that the rules on the status compare."""
        groups = (self._groups, self._tokens, self._duplicates, self._stale)
        return (*groups, self._delivered, self.acked, self._requests, self._store)

    # --- what happened --------------------------------------------------------------

    def accepted(self, groups: Sequence[ParsedGroup], stored: Sequence[Stored]) -> None:
        """Count stored groups; ``stored`` is in the order of ``groups``."""
        labelled = self._labelled
        for group, answer in zip(groups, stored):
            env, media = self._env_label(group.env), group.posted_as
            if answer.duplicate:
                labelled(self._duplicates, env).inc()
                continue
            labelled(self._groups, env, media).inc()
            labelled(self._bytes, env, media).inc(len(group.payload))
            labelled(self._sequences, env).inc(group.n_seq)
            labelled(self._tokens, env).inc(group.n_tokens)

    def delivered(self, batch: LeasedBatch, policy_version: int) -> None:
        """Count a delivered batch. Its staleness is measured at the first delivery only."""
        if batch.epoch > 1:
            self._redelivered.inc()
            return
        self._delivered.inc()
        self._stale.inc(batch.dropped)
        for member in batch.members:
            if member.version is None or member.arrived_version is None:
                continue
            # A trainer that went back to a checkpoint makes these negative: not stale.
            in_flight = max(0, member.arrived_version - member.version)
            in_queue = max(0, policy_version - member.arrived_version)
            self._in_flight.observe(in_flight)
            self._in_queue.observe(in_queue)
            self._lags.append((in_flight, in_queue))

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a response; ``route`` is a template, e.g. ``/batches/{no}/ack``."""
        method = method if method in _METHODS else "OTHER"  # clients may invent methods
        self._labelled(self._requests, method, route, status).inc()
        self._labelled(self._latency, route).observe(seconds)

    def timed(self, name: str, call: Callable[[], T]) -> T:
        """Run a call of the store, from any thread, and record its duration by ``name``."""
        begun = monotonic()
        try:
            return call()
        finally:
            self.observe_store(name, monotonic() - begun)

    def observe_store(self, call: str, seconds: float) -> None:
        """Record the duration of a call of the store."""
        self._labelled(self._store, call).observe(seconds)

    # --- what to show -----------------------------------------------------------------

    def staleness(self) -> StalenessReport | None:
        """Over the last ``STALENESS_WINDOW`` delivered groups with versions; None if none had."""
        lags = list(self._lags)
        if not lags:
            return None
        in_flight, in_queue = (lag_of(values) for values in zip(*lags))
        return StalenessReport(groups=len(lags), in_flight=in_flight, in_queue=in_queue)

    def counters(self) -> tuple[CounterValue, ...]:
        """The counters of this process that rules compare. Thread-safe."""
        families = (family for metric in self._compared for family in metric.collect())
        return tuple(
            CounterValue(sample.name.removeprefix("atropos_"), sample.labels, sample.value)
            for family in families
            for sample in family.samples
        )

    def exposition(self, status: RunStatus) -> bytes:
        """All metrics in the text format of Prometheus. Takes milliseconds; thread-safe."""
        with self._scrape:  # gauges are set and read together
            self._gauges.show(status, self._known_label)
            return generate_latest(self._registry)

    def _env_label(self, env: int | None) -> str:
        if env is None:
            return NO_ENV
        name = self._name_of(env)
        return self._known_label(name if name is not None else f"env {env}")

    def _known_label(self, name: str) -> str:
        name = name[:100]
        if name not in self._labels:
            if len(self._labels) >= MAX_ENVS:
                return OTHER
            self._labels.add(name)
        return name


_PLAIN = (  # field of /status, name and help text of the gauge
    ("queue_size", "queue_groups", "groups queued, leased or buffered"),
    ("dropped_groups", "groups_dropped", "groups of this run freed as stale"),
    ("dead_groups", "groups_dead", "groups kept for inspection"),
    ("retained_bytes", "retained_bytes", "payload bytes on hand"),
    ("disk_bytes", "payload_log_bytes", "payload log on disk, retired payloads included"),
    ("max_bytes", "max_bytes", "bound on the payload bytes on hand"),
    ("connections_refused", "connections_refused", "refused beyond --max-connections"),
    ("policy_version", "policy_version", "latest announced version"),
    ("current_step", "step", "batches delivered, from the starting step on"),
)


class _Gauges:
    """The fields of ``/status`` as gauges."""

    def __init__(self, gauge: Callable[..., Gauge]) -> None:
        state, env, role = ("state",), ("env",), ("role",)
        self._state = gauge("run_state", "1 for the state the run is in", state)
        self._sequences = gauge("sequences", "sequences held", state)
        self._batches = gauge("batches", "batches of this run", state)
        self._lag = gauge(
            "staleness", "of the last groups, in policy versions", ("stat", "where")
        )
        self._asked = gauge("env_share_asked", "of the trained tokens, 0..1", env)
        self._realised = gauge("env_share_realised", "of the trained tokens, 0..1", env)
        self._waiting = gauge("participants_waiting", "processes that wait", role)
        self._participants = gauge("participants", "processes with a heartbeat", role)
        self._blocked = gauge("blocked", "1 while no batch can be formed")
        self._plain = {field: gauge(name, text) for field, name, text in _PLAIN}

    def show(self, status: RunStatus, label: Callable[[str], str]) -> None:
        """Set all gauges from ``status``; shares of environments with the same label are summed."""
        for field, plain in self._plain.items():
            plain.set(getattr(status, field))
        self._blocked.set(status.blocked_reason is not None)
        _refill(self._state, [(status.state, 1)])
        held = ("queued", "leased", "buffered")
        _refill(self._sequences, [(s, getattr(status, f"{s}_sequences")) for s in held])
        batches = ("open", "acked", "dead")
        _refill(self._batches, [(s, getattr(status, f"batches_{s}")) for s in batches])
        shares = [(NO_ENV if s.env_id is None else label(s.name), s) for s in status.shares]
        _refill(self._asked, [(env, share.asked) for env, share in shares])
        _refill(self._realised, [(env, share.realised) for env, share in shares])
        here = status.participants
        _refill(self._participants, [(peer.role, 1) for peer in here])
        _refill(self._waiting, [(peer.role, peer.waiting_on is not None) for peer in here])
        self._lag.clear()
        for where, lag in status.staleness or ():  # its fields and their values
            if isinstance(lag, Lag):
                for stat, value in lag:
                    self._lag.labels(stat, where).set(value)


def _refill(gauge: Gauge, values: Iterable[tuple[str, float]]) -> None:
    """Set ``gauge`` to the sum of the values of each label."""
    gauge.clear()  # an environment that left does not stay at its last value
    for label, value in values:
        gauge.labels(label).inc(value)


def lag_of(values: Sequence[int]) -> Lag:
    """Mean, 95th percentile (the smallest value that 95 % do not exceed) and maximum."""
    mean = sum(values) / len(values)
    return Lag(mean=mean, p95=percentile(values, 0.95), max=max(values))
