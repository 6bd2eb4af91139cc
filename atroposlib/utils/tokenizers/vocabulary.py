"""Token ids of a student in the vocabulary of its teacher, and back.

    student  "a" 0  "b" 1                    to_teacher  0 -> 1, 1 -> 0
    teacher  "b" 0  "a" 1  "<pad>" 2         to_student  1 -> 0, 0 -> 1; 2 is no token of the student

A teacher can judge a student's tokens only if its vocabulary has every token of the student.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import ConfigError

SHOWN = 3  # absent tokens that an error names


@dataclass(frozen=True)
class VocabularyMap:
    """Ids of the same tokens in two vocabularies."""

    to_teacher: Mapping[int, int]  # keys: all ids of the student
    to_student: Mapping[int, int]  # keys: ids of the teacher whose token the student has

    @property
    def has_equal_ids(self) -> bool:
        """Whether each token of the student has the same id in both."""
        return all(ours == theirs for ours, theirs in self.to_teacher.items())

    def ids_for_teacher(self, ids: Sequence[int]) -> list[int]:
        """The ids of the student as ids of the teacher. Raises KeyError: no token has an id."""
        return [self.to_teacher[i] for i in ids]


def vocabulary_map(student: Any, teacher: Any, names: tuple[str, str]) -> VocabularyMap:
    """The map between two tokenizers; ``names`` are the student's and the teacher's.

    Raises ConfigError: the teacher lacks tokens of the student.
    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    absent = sorted(ours.keys() - theirs.keys())
    if absent:
        shown = ", ".join(map(repr, absent[:SHOWN]))
        raise ConfigError(
            f"the teacher's tokenizer {names[1]} lacks {len(absent)} of the {len(ours)} tokens of"
            f" {names[0]}, such as {shown}: it cannot judge what the trained model writes. Use a"
            " teacher of the same family of models"
        )
    to_teacher = {own: theirs[token] for token, own in ours.items()}
    return VocabularyMap(to_teacher, {other: own for own, other in to_teacher.items()})
