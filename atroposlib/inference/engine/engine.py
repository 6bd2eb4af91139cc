"""Engine thread: owns the model and runs commands from an inbox between two steps.

    submit / cancel / pause / resume / update_weights      (any thread)
            |
          inbox  ->  commands run in order, between two steps
            |
          step:   admit -> prefill -> decode -> finish     (the engine thread)

Commands never run during a forward, so weights are never written while a forward reads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

# In Python 3.10 the TimeoutError of futures is another class than the built-in one.
from concurrent.futures import Future, TimeoutError as FutureTimeout
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import torch

from atroposlib.errors import AtroposError, InferenceUnavailable, boundary
from atroposlib.inference.engine.core import Counters, EngineCore, EngineLimits
from atroposlib.inference.engine.request import GenerationRequest
from atroposlib.inference.engine.served_model import ServedModel
from atroposlib.inference.engine.weights import MergedAdapter, load_in_place

T = TypeVar("T")
CONTROL_TIMEOUT_S = 60.0
WEIGHTS_TIMEOUT_S = 600.0
GATHER_S = 0.002  # an idle engine waits this long for further requests after the
GATHER_MAX_S = 0.02  # first request, again after each, and at most this long in total


class EngineState(str, Enum):
    RUNNING = "running"
    DRAINING = "draining"  # pause(wait): finishes what runs, admits nothing
    PAUSED = "paused"  # nothing runs, new requests wait
    FROZEN = "frozen"  # pause(keep): running sequences stay in memory, untouched
    CLOSED = "closed"


class PauseMode(str, Enum):
    """Treatment of running sequences by a pause."""

    WAIT = "wait"  # running sequences finish
    ABORT = "abort"  # running and waiting sequences end with their tokens so far
    KEEP = "keep"  # sequences freeze and continue after resume, under the weights of that time


class Engine:
    """Generates for many requests at once; the diagram of the module shows the flow."""

    def __init__(
        self,
        served: ServedModel,
        limits: EngineLimits | None = None,
        *,
        seed: int | None = None,
        weight_version: int = 0,
        num_threads: int | None = None,
        before_change: Callable[[Any, int], None] | None = None,
    ) -> None:
        self.served = served
        self._before_change = (
            before_change  # gets the model and its version, before new weights
        )
        self.limits = limits or EngineLimits()
        self.state = EngineState.RUNNING
        self._core = EngineCore(served, self.limits, seed=seed, weight_version=weight_version)
        self._adapter = MergedAdapter()
        self._num_threads = num_threads
        self._resume_at: float | None = None  # monotonic time at which a pause ends
        self._drained: list[Future[None]] = []  # callers of pause(wait)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- called from any thread --------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Abort running sequences and end the thread."""
        self._inbox.put(self._close)
        self._thread.join(timeout=30.0)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; its future resolves when all its sequences ended."""
        self._inbox.put(lambda: self._core.add(request))

    def cancel(self, request: GenerationRequest) -> None:
        """Free the rows of a request whose client has disconnected."""
        self._inbox.put(lambda: self._cancel(request))

    def pause(
        self, mode: PauseMode, timeout_s: float = 60.0, resume_after_s: float | None = None
    ) -> None:
        """Stop sampling; return once no sequence is sampled any more.

        Args:
            resume_after_s: resume automatically after this time, for a caller that may
                crash. A later pause replaces the bound or, without a bound, lifts it. An attempt
                to change weights lifts it too: only the caller can check the result.

        Raises InferenceUnavailable: running sequences did not finish in time (mode wait). The
        engine continues to drain: resume it, or pause it in another mode.
        """
        done: Future[None] = Future()
        self._inbox.put(lambda: self._pause(mode, done, resume_after_s))
        self._await(done, timeout_s, f"pause(mode={mode.value})")

    def resume(self) -> None:
        self._control(lambda: self._enter_state(EngineState.RUNNING), "resume")

    def update_weights(self, directory: str, version: int | None = None) -> int:
        """:meth:`replace_weights` by the weights of a model directory; returns the number of tensors."""
        return self.replace_weights(partial(load_in_place, directory=directory), version)

    def replace_weights(self, load: Callable[[Any], int], version: int | None) -> int:
        """Let ``load`` replace all weights of the model it is given; returns its count.

        Running sequences keep their tokens; their KV is recomputed, so that every later
        logprob belongs to the new weights. Without a ``version`` the current version is
        incremented, so changed weights never keep the old version number. Raises WeightsError:
        nothing changed.
        """

        def replace(model: Any) -> int:
            count = load(model)
            self._adapter.forget()
            return count

        return self._change_weights(replace, version, "update_weights")

    def load_adapter(self, directory: str, name: str, version: int | None) -> int:
        """Merge a LoRA adapter in place of the current adapter; as :meth:`replace_weights`."""
        load = partial(self._adapter.load, directory=directory, name=name)
        return self._change_weights(load, version, "load_adapter")

    def unload_adapter(self, name: str, version: int | None) -> int:
        """Serve the weights without the adapter; as :meth:`replace_weights`."""
        unload = partial(self._adapter.unload, name=name)
        return self._change_weights(unload, version, "unload_adapter")

    def stay_paused(self) -> None:
        """Lift the bound of a pause: weights are about to change."""
        self._control(self._lift_bound, "stay_paused")

    def set_weight_version(self, version: int) -> None:
        """Set the version number of the current weights."""
        self._control(lambda: self._core.begin_version(version), "set_weight_version")

    @property
    def weight_version(self) -> int:
        return self._core.weight_version

    @property
    def counters(self) -> Counters:
        return self._core.counters

    @property
    def adapter(self) -> str | None:
        """Name of the adapter that is merged into the weights."""
        return self._adapter.name

    @property
    def resumes_in_s(self) -> float | None:
        """Seconds until a pause ends automatically; None without a bound."""
        at = self._resume_at
        return None if at is None else max(0.0, at - time.monotonic())

    @property
    def num_running(self) -> int:
        return len(self._core.batch)

    @property
    def num_waiting(self) -> int:
        return len(self._core.scheduler.waiting)

    @property
    def is_paused(self) -> bool:
        return self.state is not EngineState.RUNNING

    def _change_weights(
        self, load: Callable[[Any], int], version: int | None, name: str
    ) -> int:
        def change() -> int:
            # also on failure: the other servers may hold the new weights
            self._lift_bound()
            if self._before_change is not None:
                self._before_change(self.served.model, self.weight_version)
            return self._core.update_weights(load, version)

        return self._control(change, name, WEIGHTS_TIMEOUT_S)

    def _control(
        self, command: Callable[[], T], name: str, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> T:
        done: Future[T] = Future()

        def run() -> None:
            try:
                with boundary("inference engine", name, "control"):
                    done.set_result(command())
            except AtroposError as error:
                done.set_exception(error)

        self._inbox.put(run)
        return self._await(done, timeout_s, name)

    def _await(self, done: Future[T], timeout_s: float, name: str) -> T:
        try:
            return done.result(timeout_s)
        except FutureTimeout:
            raise InferenceUnavailable(
                f"{name} did not complete within {timeout_s:g} s: {self.num_running} running, "
                f"{self.num_waiting} waiting, engine {self.state.value}"
            ) from None

    # --- the engine thread -------------------------------------------------------------

    def _run(self) -> None:
        if self._num_threads:
            torch.set_num_threads(self._num_threads)  # OpenMP keeps the number per thread
        with torch.inference_mode():  # also per thread
            while self.state is not EngineState.CLOSED:
                self._read_inbox(wait=not self._has_work())
                self._end_forgotten_pause()
                if self._has_work():
                    self._step()
            self._read_inbox(wait=False)  # later commands still get a result
            self._core.abort_all()

    def _has_work(self) -> bool:
        core = self._core
        if core.to_score:
            return True  # also while paused: a client verifies new weights before it resumes
        if self.state is EngineState.RUNNING:
            return bool(core.scheduler.waiting or core.batch.sequences)
        return self.state is EngineState.DRAINING and bool(core.batch.sequences)

    def _read_inbox(self, wait: bool) -> None:
        """Run all queued commands; if ``wait``, block for the first command.

        While a pause is bounded the wait ends with it.
        """
        deadline = 0.0
        if wait:
            try:
                self._inbox.get(timeout=self.resumes_in_s)()
            except queue.Empty:
                return
            deadline = time.monotonic() + GATHER_MAX_S
        while True:
            gather = time.monotonic() < deadline and self._has_work()
            try:
                command = self._inbox.get(gather, GATHER_S if gather else None)
            except queue.Empty:
                return
            command()

    def _step(self) -> None:
        core = self._core
        try:
            with boundary("inference engine", f"{len(core.batch)} rows", "step"):
                if core.to_score:
                    core.score()
                if self.state in (EngineState.RUNNING, EngineState.DRAINING):
                    core.step(admit=self.state is EngineState.RUNNING)
        except AtroposError as error:
            core.fail_all(error)
        self._pause_if_drained()

    # --- commands, run between steps ---------------------------------------------------

    def _cancel(self, request: GenerationRequest) -> None:
        self._core.remove(request)
        self._pause_if_drained()

    def _lift_bound(self) -> None:
        self._resume_at = None

    def _end_forgotten_pause(self) -> None:
        if self._resume_at is not None and time.monotonic() >= self._resume_at:
            self._core.counters.add_forgotten_pause()
            self._enter_state(EngineState.RUNNING)

    def _pause(
        self, mode: PauseMode, done: Future[None], resume_after_s: float | None = None
    ) -> None:
        self._drained.append(done)
        bound = None if resume_after_s is None else time.monotonic() + resume_after_s
        self._resume_at = bound
        if mode is PauseMode.ABORT:
            self._core.abort_all()
        if not self._core.batch.sequences:
            self._enter_state(EngineState.PAUSED)
        elif mode is PauseMode.KEEP:
            self._enter_state(EngineState.FROZEN)
        else:
            self.state = EngineState.DRAINING

    def _pause_if_drained(self) -> None:
        if self.state is EngineState.DRAINING and not self._core.batch.sequences:
            self._enter_state(EngineState.PAUSED)

    def _enter_state(self, state: EngineState) -> None:
        """Set the state and release the callers that wait for the end of a drain."""
        self.state = state
        if state in (EngineState.RUNNING, EngineState.CLOSED):
            self._lift_bound()
        waiters, self._drained = self._drained, []
        for waiter in waiters:
            waiter.set_result(None)

    def _close(self) -> None:
        self._core.abort_all()
        self._enter_state(EngineState.CLOSED)
