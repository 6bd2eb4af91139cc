"""An evaluation that runs in a thread while training goes on.

    load, check -> the programs run -> check -> results, a copy of the samples, servers given back

The result is final when the thread has ended; the trainer's loop then logs it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from atroposlib.errors import AtroposError, surviving
from atroposlib.utils.io import write_whole
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.evaluation import RECORD, Evaluation, EvaluationOutcome
from example_trainer.run.evaluation_jobs import jobs_of, run_jobs
from example_trainer.run.evaluation_places import EvaluationPlace
from example_trainer.run.heldout_copy import copy_to_heldout
from example_trainer.settings.config import EvaluatorSettings

logger = logging.getLogger(__name__)


@dataclass
class BackgroundEvaluation:
    """An evaluation in a thread, which leaves its servers in every case.

    ``evaluation`` is final when the thread has ended.
    """

    cfg: EvaluatorSettings
    place: EvaluationPlace
    state: TrainerState
    evaluation: Evaluation
    out: Path

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="evaluation", daemon=True)
        self._began = time.monotonic()
        self._why: str | None = None  # it is to end early
        self._problem: str | None = None

    def start(self, problem: str | None) -> None:
        """Begin; with a ``problem`` only to note it, and to give the servers back."""
        self._problem = problem
        self.thread.start()

    @property
    def has_ended(self) -> bool:
        return self.evaluation.outcome is not EvaluationOutcome.RUNNING

    def stop(self, why: str) -> None:
        """End it soon, with the results that it has by then."""
        self._why = self._why or why

    def _run(self) -> None:
        try:
            with surviving(self._fail):
                self._evaluate()
        finally:
            self.place.give_back(self.evaluation.servers)
            with surviving(lambda error: logger.warning(f"{self.out / RECORD}: {error}")):
                write_record(self.evaluation, self.out)

    def _evaluate(self) -> None:
        """Prepare the servers, run the programs, and check that the version has stayed."""
        if self._problem is not None:
            return self._fail(AtroposError(self._problem))
        write_record(self.evaluation, self.out)
        urls, version, bound_s = (
            self.evaluation.servers,
            self.evaluation.version,
            self.cfg.eval_timeout_s,
        )
        self.place.load(urls, version)
        self.place.check(urls, version)
        engine = self.place.engine_name(urls[0])
        jobs = jobs_of(self.cfg, self.state, version, urls, self.out, engine)
        until = self._began + bound_s
        parts = run_jobs(jobs, self.out, until, bound_s, lambda: self._why)
        self.place.check(urls, version)
        ended = self.evaluation.with_results(parts, time.monotonic() - self._began)
        copy_to_heldout(ended, self.out, Path(self.cfg.log_dir))
        self.evaluation = ended

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, (AtroposError, OSError, ValueError)):
            logger.error("the evaluation has failed by a bug", exc_info=error)
        self.evaluation = self.evaluation.with_problem(
            str(error), time.monotonic() - self._began
        )


def write_record(evaluation: Evaluation, out: Path) -> None:
    """Write what became of an evaluation into its directory."""
    write_whole(out / RECORD, evaluation.to_json())
