"""Statistics, discounted returns and process-supervised advantages of nested rewards.

Inputs are lists, tuples or arrays of numbers, nested to any depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def allclose_to_first(
    values: ArrayLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
    return_vector: bool = False,
) -> bool | NDArray[np.bool_]:
    """Whether every entry of ``values`` (N, ...) is close to the first.

    ``return_vector`` returns a result per entry, (N,), instead of a single result. Raises
    ValueError: ``values`` is empty or not rectangular.
    """
    rows = np.asarray(values, dtype=float)
    if rows.ndim == 0 or len(rows) == 0:
        raise ValueError("values: at least one entry is needed")
    close = np.isclose(rows, rows[0], rtol=rtol, atol=atol, equal_nan=equal_nan)
    each = close.reshape(len(rows), -1).all(axis=1)  # (N,)
    return each if return_vector else bool(each.all())


def compute_stats(data: Any) -> dict[str, float]:
    """``mean`` and population ``var`` of all numbers in ``data``, which may be jagged.

    Raises ValueError: there is no number, or an entry that is not a finite number.
    """
    numbers = list(_numbers(data))
    if not numbers:
        raise ValueError("data: no numbers in it")
    mean = math.fsum(numbers) / len(numbers)
    # Two passes: the difference of squares loses all digits of values that nearly agree.
    var = math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)
    return {"mean": mean, "var": var}


def _numbers(data: Any) -> Iterator[float]:
    if isinstance(data, (np.ndarray, np.generic)):
        data = data.tolist()
    if isinstance(data, (int, float)):
        if not math.isfinite(data):
            raise ValueError(f"data: {data} is not a finite number")
        yield float(data)
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        for entry in data:
            yield from _numbers(entry)
    else:
        raise ValueError(f"data: {type(data).__name__} is neither a number nor a sequence")


def compute_discounted_returns(rewards: ArrayLike, gamma: float) -> NDArray[np.floating[Any]]:
    """Returns ``G[t] = r[t] + gamma * G[t + 1]``, in the shape of ``rewards`` (T, ...).

    Floating arrays keep their precision; lists and whole numbers become float32.
    """
    array = np.asarray(rewards)
    keeps = isinstance(rewards, np.ndarray) and np.issubdtype(array.dtype, np.floating)
    returns = array.astype(np.float64)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns.astype(array.dtype if keeps else np.float32)


def compute_grpo_process_supervision_advantages(
    rewards: Sequence[ArrayLike], gamma: float | None = None, std_tol: float = 1e-8
) -> list[NDArray[np.floating[Any]]]:
    """Per-step advantages of a group: each step's normalised reward plus all later rewards.

    Steps are normalised by the mean and the standard deviation of all steps of all
    trajectories; ``gamma`` discounts later rewards. An array (T,) per trajectory. Raises
    ValueError: no steps, or a standard deviation below ``std_tol``: all steps are equal.
    """
    stats = compute_stats(rewards)
    std = math.sqrt(stats["var"])
    if std < std_tol:
        raise ValueError(f"rewards: their deviation {std:g} is below std_tol {std_tol:g}")
    discount = 1.0 if gamma is None else gamma
    return [
        compute_discounted_returns((np.asarray(row, float) - stats["mean"]) / std, discount)
        for row in rewards
    ]
