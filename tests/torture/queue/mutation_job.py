"""Each mutant before its judge, in a separate process."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Iterable

from tests.torture.disk.bit_rot import bit_rot_campaign
from tests.torture.disk.power_cuts import power_cut_campaign
from tests.torture.figures import Figures
from tests.torture.queue.mutants import MUTANTS
from tests.torture.queue.mutation import Judge
from tests.torture.queue.queue_machine import QueueMachine, run_machine

UNCHANGED = "none"
MOST_S = 1_800.0  # of all, on a loaded machine
# An exception other than AssertionError proves nothing about the judge.
NOTICED, SURVIVED, BROKEN = "noticed", "survived", "broken"


def judge(name: str, examples: int) -> None:
    """Raises the error of the judge."""
    chosen = list(Judge)
    if name != UNCHANGED:
        who, patch = MUTANTS[name]
        chosen = [who]
        patch()
    if Judge.MACHINE in chosen:
        run_machine(QueueMachine, examples, repeatable=True)
    if Judge.POWER in chosen:
        power_cut_campaign(examples)
    if Judge.ROT in chosen:
        bit_rot_campaign(min(examples, 100))


def verdict(job: tuple[str, int]) -> tuple[str, str, str]:
    """(name, verdict, what was raised) of one mutant; its process runs nothing else."""
    name, examples = job
    try:
        judge(name, examples)
    except AssertionError as noticed:
        return name, NOTICED, str(noticed)[:2000]
    except Exception as error:
        return name, BROKEN, repr(error)[:2000]
    return name, SURVIVED, ""


def refused_patch(name: str) -> tuple[str, str]:
    """(name, error) of a mutant whose patch does not fit the code any more, else an empty error.

    An AttributeError: the patched name has moved.
    """
    try:
        MUTANTS[name][1]()
    except Exception as error:
        return name, repr(error)
    return name, ""


def refused_patches(names: Iterable[str]) -> dict[str, str]:
    """Errors of the mutants whose patch cannot be applied, by name; each in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(2, maxtasksperchild=1) as pool:
        outcomes = pool.map_async(refused_patch, names, chunksize=1).get(MOST_S)
    return {name: error for name, error in outcomes if error}


def mutation_campaign(names: Iterable[str], examples: int, at_once: int = 2) -> Figures:
    """Raises AssertionError if one survives, or the code as it is does not."""
    # Forks of a process that has imported all of this and started no thread: an import for
    # each mutant would take longer than most judges.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    # A few examples of the unchanged code: the other campaigns run thousands.
    jobs = [(UNCHANGED, examples // 10), *((name, examples) for name in names)]
    found: dict[str, dict[str, str]] = defaultdict(dict)
    with context.Pool(at_once, maxtasksperchild=1) as pool:
        for name, outcome, words in pool.map_async(verdict, jobs, chunksize=1).get(MOST_S):
            found[outcome][name] = words
    assert found[SURVIVED].pop(UNCHANGED, None) == "", f"the code as it is: {dict(found)}"
    assert not found[SURVIVED] and not found[BROKEN], dict(found)
    return Figures({"mutants": len(jobs) - 1, "noticed": len(found[NOTICED])})
