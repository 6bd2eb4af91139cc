"""Evaluation at a fixed version: its schedule, and where it runs.

    shared   the trainer waits for the programs, so no weights change meanwhile
    held     } a thread runs the programs on servers that keep the version; training goes on, and
    dir      } results come later, under the step and the version that were evaluated

An evaluation is bounded, and gives way to the next where it is late. A failed evaluation is counted and
printed. It never becomes a number and never ends training.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from atroposlib.errors import AtroposError
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.background_evaluation import BackgroundEvaluation, write_record
from example_trainer.run.connect import WaitReporter
from example_trainer.run.evaluation import RECORD, Evaluation, EvaluationOutcome, read_record
from example_trainer.run.evaluation_jobs import jobs_of, run_jobs
from example_trainer.run.evaluation_places import EvaluationPlace
from example_trainer.settings.config import EvaluatorSettings
from example_trainer.state import Frequency

logger = logging.getLogger(__name__)
FOLDER = "eval"  # below save_path
POLL_S = 0.2
END_S = 30.0  # bound of ending the programs of an evaluation


def no_report(evaluation: Evaluation) -> None:
    """Log an evaluation nowhere."""


class Evaluator:
    """Evaluates on the first rank. All methods but :meth:`close` are collective.

    Args:
        waits: lets a signal end a wait, and shows that the trainer waits.
        place: servers of evaluations in the background; None: the trainer waits for each.
        report: gets each evaluation that is logged under a step before, in the trainer's loop:
            those in the background, and that of the start.
    """

    def __init__(
        self,
        cfg: EvaluatorSettings,
        world: Ranks,
        waits: WaitReporter | None = None,
        place: EvaluationPlace | None = None,
        report: Callable[[Evaluation], None] = no_report,
    ) -> None:
        self._cfg, self._world, self._waits = cfg, world, waits
        self._place, self._report = place, report
        self._running: BackgroundEvaluation | None = None
        self._present: tuple[Evaluation, float] | None = None  # and when it began, monotonic
        self._is_due = False  # also of an evaluation that was put off
        self.failures = 0
        self.frequency = Frequency(
            cfg.eval_every_epochs, cfg.eval_every_steps, cfg.eval_every_s, time.time()
        )

    def at_start(self, state: TrainerState, urls: Sequence[str]) -> None:
        """Evaluate before the first step, if the settings request it; reported as of step 0.

        A trainer that was started again first notes what became of earlier evaluations.
        """
        cfg = self._cfg
        if self._place is not None:
            run_on_rank0(self._world, lambda: self._note_earlier(state))
        if not cfg.eval_at_start or not cfg.evaluates or state.step > 0:
            return
        if self._waits is not None:
            self._waits.phase("evaluating")
        if self._place is None:
            run_on_rank0(self._world, lambda: self._report(self._wait_for(state, urls)))
        else:
            self._begin_if_due(self._place, state, lambda: True)

    def maybe(
        self, state: TrainerState, epoch_ended: bool, urls: Sequence[str]
    ) -> dict[str, float]:
        """Evaluate if it is due, and return the metrics; call once per step.

        In the background the metrics go to ``report`` when they come. ``eval_failures`` counts
        failed evaluations so far. A stop signal raises Stopped.
        """
        if not self._cfg.evaluates:
            return {}

        def due() -> bool:
            return self.frequency.due(epoch_ended, time.time())

        if self._place is None:
            return run_on_rank0(
                self._world,
                lambda: self._metrics(self._wait_for(state, urls)) if due() else {},
            )
        self._begin_if_due(self._place, state, due)
        return {"eval_failures": float(self.failures)} if self.failures else {}

    def progress(self) -> dict[str, float | int | str]:
        """Details of a heartbeat about the evaluation that runs; empty if none does."""
        present, running = self._present, self._running
        if present is None or (running and running.has_ended):
            return {}
        evaluation, began = present
        return {
            "evaluated_step": evaluation.step,
            "evaluated_version": evaluation.version,
            "evaluation_where": evaluation.where,
            "evaluation_s": round(time.monotonic() - began, 1),
            "evaluation_bound_s": self._cfg.eval_timeout_s,
        }

    def finish(self) -> None:
        """Wait for the evaluation that still runs, at most until its bound; training is done."""
        if self._place is not None:
            run_on_rank0(self._world, self._wait_for_last)

    def close(self) -> None:
        """End what runs, and let its servers go."""
        if self._running is not None:
            self._running.stop("the trainer ended")
            self._running.thread.join(END_S)
            self._running = self._present = None

    def _begin_if_due(
        self, place: EvaluationPlace, state: TrainerState, due: Callable[[], bool]
    ) -> None:
        if not run_on_rank0(self._world, lambda: self._begin(place, state, due())):
            return
        problem = None
        try:
            place.export(state)
        except AtroposError as error:  # a full disk, for example; alike on every rank
            problem = str(error)
        if self._running is not None:
            self._running.start(problem)

    def _folder(self, step: int) -> Path:
        return Path(self._cfg.save_path).resolve() / FOLDER / f"step_{step}"

    # --- shared: the trainer waits --------------------------------------------------------

    def _wait_for(self, state: TrainerState, urls: Sequence[str]) -> Evaluation:
        cfg, out, began = self._cfg, self._folder(state.step), time.monotonic()

        def wait() -> None:
            if self._waits is not None:
                self._waits("the evaluation")

        evaluation = Evaluation(state.step, state.version, cfg.eval_where, [*urls])
        self._present = evaluation, began
        try:
            jobs = jobs_of(cfg, state, state.version, urls, out)
            until = began + cfg.eval_timeout_s
            parts = run_jobs(jobs, out, until, cfg.eval_timeout_s, wait)
            evaluation = evaluation.with_results(parts, time.monotonic() - began)
        except (OSError, ValueError, AtroposError) as error:
            evaluation = evaluation.with_problem(str(error), time.monotonic() - began)
        finally:
            self._present = None
        self._count(evaluation)
        return evaluation

    def _metrics(self, evaluation: Evaluation) -> dict[str, float]:
        """Metrics of the step that was evaluated."""
        numbers = {name: n for part in evaluation.parts for name, n in part.metrics().items()}
        return {**numbers, "eval_failures": float(self.failures)}

    def _count(self, evaluation: Evaluation) -> None:
        if evaluation.has_failed:
            self.failures += 1
            logger.warning(f"EVALUATION FAILED at step {evaluation.step}: {evaluation.why}")
        else:
            log = logger.warning if evaluation.why else logger.info
            log(evaluation.line())

    # --- held, dir: in the background -----------------------------------------------------

    def _begin(self, place: EvaluationPlace, state: TrainerState, due: bool) -> bool:
        """Report what ended; take servers for an evaluation that is due. Rank 0.

        An evaluation that still runs when the next is due is ended, and the next begins once its
        servers are free.
        """
        self._collect()
        self._is_due = self._is_due or due
        if not self._is_due:
            return False
        if self._running is not None:
            if due:
                self._running.stop(f"replaced: the evaluation of step {state.step} is due")
            return False
        urls = place.take(state)
        if not urls:
            return False
        self._is_due = False
        out, version = self._folder(state.step), place.version(state)
        shutil.rmtree(out, ignore_errors=True)  # leftovers of an evaluation that is repeated
        evaluation = Evaluation(state.step, version, self._cfg.eval_where, urls)
        self._running = BackgroundEvaluation(self._cfg, place, state, evaluation, out)
        self._present = evaluation, time.monotonic()
        return True

    def _collect(self) -> None:
        running = self._running
        if running is not None and not running.thread.is_alive():
            self._running = self._present = None
            self._log(running.evaluation, running.out)

    def _log(self, evaluation: Evaluation, out: Path) -> None:
        self._count(evaluation)
        self._report(evaluation)
        try:
            write_record(replace(evaluation, is_logged=True), out)
        except OSError as error:  # it is logged once more by the next life of the trainer
            logger.warning(f"{out / RECORD}: {error}")

    def _note_earlier(self, state: TrainerState) -> None:
        """Note evaluations of an earlier life: lost, or ended and not logged yet."""
        for file in self._folder(0).parent.glob(f"step_*/{RECORD}"):
            earlier = read_record(file)
            if earlier is None or earlier.is_logged:
                continue
            if earlier.step > state.step:
                shutil.rmtree(file.parent, ignore_errors=True)  # the step is repeated
                continue
            if earlier.outcome is EvaluationOutcome.RUNNING:
                earlier = earlier.as_lost()
            self._log(earlier, file.parent)

    def _wait_for_last(self) -> None:
        while self._running is not None:
            if self._waits is not None:
                self._waits("the last evaluation")
            self._running.thread.join(POLL_S)
            self._collect()
