"""Earlier versions of the served weights, which stay in memory as opponents of the policy.

    policy engine, before its weights change --keep--> a slot: an engine with a copy of the model

Every slot is a whole engine, so each version has its own keys and values and its own thread. The
memory of all slots is taken at the start. Requests reach a version by the name NAME@VERSION. A
version that leaves the list keeps its slot until the next version comes, so that a game against it
can end.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import ServedModel
from atroposlib.inference.engine.weights import copy_tensors
from atroposlib.utils.models.version_names import versioned_name


class EarlierVersions:
    """The last versions of a served model whose number is a multiple of ``every``.

    Each slot answers; the oldest of full slots is not listed.
    """

    def __init__(self, name: str, slots: Sequence[Engine], every: int = 1) -> None:
        self.name = name
        self.slots = list(slots)
        self.every = every
        self._held: dict[int, Engine] = {}  # replaced as a whole, because threads read it

    def keep(self, model: Any, version: int) -> None:
        """Copy the weights of ``model`` into a slot; the policy's thread calls it.

        Sequences that still run in the slot continue with the new weights, and their later
        tokens carry the new version, as after any update of weights.
        """
        if not self.slots or version % self.every:
            return
        held = dict(self._held)
        left_over = version_to_replace(held, version, len(self.slots))
        if left_over is None:
            slot = next(engine for engine in self.slots if engine not in held.values())
        else:
            slot = held.pop(left_over)
        self._held = dict(held)  # the old name ends before the weights change
        load = partial(copy_tensors, tensors=model.state_dict())
        slot.replace_weights(load, version)
        slot.served.name = versioned_name(self.name, version)
        self._held = {**held, version: slot}

    def engine_of(self, model: str) -> Engine | None:
        """The engine of a version by the name of a request; None if no slot has it."""
        return next((slot for slot in self._held.values() if slot.served.name == model), None)

    def names(self, current: int) -> list[str]:
        """Names of the last versions before ``current``, the oldest first."""
        earlier = sorted(version for version in self._held if version < current)
        listed = earlier[max(0, len(earlier) - len(self.slots) + 1) :]
        return [versioned_name(self.name, version) for version in listed]

    @property
    def generated_tokens(self) -> int:
        """Tokens of all versions since the start."""
        return sum(slot.counters.generated_tokens for slot in self.slots)

    def close(self) -> None:
        for slot in self.slots:
            slot.close()


def version_to_replace(held: Collection[int], version: int, slots: int) -> int | None:
    """The version whose slot ``version`` takes; None: a slot is free.

    A version that is not before ``version`` is of a life of the trainer that went back, and leaves
    first; then the oldest.
    """
    undone = [number for number in held if number >= version]
    if undone:
        return version if version in undone else max(undone)
    return min(held) if len(held) >= slots else None


def copied_model(served: ServedModel) -> ServedModel:
    """A copy with its own weights; the tokenizer is shared."""
    return copy.deepcopy(served, {id(served.tokenizer): served.tokenizer})


def slots_for(versions: int) -> int:
    """Slots for so many listed versions."""
    return versions + 1 if versions else 0


def open_slots(
    served: ServedModel, limits: EngineLimits, count: int, **options: Any
) -> list[Engine]:
    """``count`` started engines, each with a copy of ``served``; ``options`` are of Engine."""
    slots = [Engine(copied_model(served), replace(limits), **options) for _ in range(count)]
    for slot in slots:
        slot.start()
    return slots
