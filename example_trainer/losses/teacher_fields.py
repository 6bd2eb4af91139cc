"""Rows without the fields of a teacher that a loss reads: an error, or a metric and a warning.

    no row of an environment has had the fields so far     ConfigError: environment, loss, field, remedy
    some rows of a batch lack the fields                   rows_without_teacher, and a warning, once

A loss that ``distill_coef`` adds to a reward is refused where no environment has the fields.
A row without a teacher adds to the loss nothing but its tokens to the divisor, so a mistake in the
settings of an environment would pass as a loss of 0. Further fields that losses read need no rule
here: each row without ``inference_logprobs`` is refused (``data.rows``), and for ``ref_logprobs``
there is a reference model (``advantage.prepare``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from atroposlib.errors import ConfigError
from atroposlib.wire import MASKED_LOGPROB
from example_trainer import losses
from example_trainer.data.rows import Row, at_trained
from example_trainer.settings.algorithms import BatchPart, parts_of
from example_trainer.settings.loss import ObjectiveSettings


class LackingRows(NamedTuple):
    """Rows of an environment that lack what a loss reads, by their number."""

    environment: str
    loss: str
    rows: int

    @property
    def sentence(self) -> str:
        """The warning, the same for every batch."""
        return (
            f"environment {self.environment}: some rows come without the teacher's logprobs"
            f" (distill_token_ids) that loss {self.loss} reads, and teach nothing; the record"
            " counts such rows as rows_without_teacher"
        )


def lacking_rows(
    rows: Sequence[Row], settings: ObjectiveSettings, taught: Collection[str]
) -> Iterator[LackingRows]:
    """The rows in the loss of a batch that lack the fields of a teacher, by environment.

    Args:
        taught: names of environments that have sent the fields before.

    Raises:
        ConfigError: no row of an environment has the fields, now or before.
    """
    for part in parts_of(settings, [row.environment for row in rows]):
        for loss in sorted(losses.teacher_losses(part.settings)):
            named = _by_environment(rows, part)
            lacking = {
                n: sum(not has_teacher(r, loss) for r in own) for n, own in named.items()
            }
            untaught = {n for n in named if lacking[n] == len(named[n]) and n not in taught}
            # With a reward, an environment without a teacher may stand among those with a teacher.
            is_added = loss != part.settings.loss
            if untaught and not (is_added and untaught < named.keys()):
                raise ConfigError(_refusal(min(untaught), loss, is_added))
            for name in filter(lacking.get, named):
                yield LackingRows(name, loss, lacking[name])


def taught_environments(rows: Sequence[Row]) -> set[str]:
    """Names of the environments of which a row has a teacher."""
    return {name_of(row) for row in rows if row.teacher_ids is not None}


def name_of(row: Row) -> str:
    """The name of a row's environment."""
    return row.environment or "unnamed"


def has_teacher(row: Row, loss: str) -> bool:
    """Whether a trained token of the row has what the loss reads of a teacher."""
    if loss in losses.OF_SAMPLED:
        return any(value != MASKED_LOGPROB for value in row.trained_teacher_logprobs)
    return row.teacher_ids is not None and any(at_trained(row, row.teacher_ids))


def _by_environment(rows: Sequence[Row], part: BatchPart) -> dict[str, list[Row]]:
    named: dict[str, list[Row]] = {}
    for place in part.places:
        named.setdefault(name_of(rows[place]), []).append(rows[place])
    return named


def _refusal(name: str, loss: str, is_added: bool) -> str:
    sampled = " of the sampled tokens" if loss in losses.OF_SAMPLED else ""
    instead = "set distill_coef to 0" if is_added else "give it another loss"
    setting = "distill_coef" if is_added else "loss"
    return (
        f"environment {name}: loss {loss} reads a teacher's logprobs{sampled} (distill_token_ids,"
        " distill_logprobs), and none of its rows has them. Name a teacher in the settings of the"
        f" environment (env.teacher, or a TeacherDistillationEnv), or {instead}"
        f" (algorithms.{name}.{setting})"
    )
