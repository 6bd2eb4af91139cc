"""Every seeded bug of the store fits the code as it is, without its judge."""

from __future__ import annotations

from tests.torture.queue.mutants import MUTANTS
from tests.torture.queue.mutation_job import refused_patches


def test_the_patch_of_every_seeded_bug_finds_the_name_that_it_replaces():
    assert refused_patches(MUTANTS) == {}
