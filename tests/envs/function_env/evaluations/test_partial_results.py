"""Tests of the results that an evaluation leaves where it is ended early."""

from __future__ import annotations

import asyncio
import json

import pytest

from atroposlib.envs.function_env.partial_results import partial_results


async def test_partial_results_lie_in_a_folder_of_their_own_until_the_evaluation_ends(
    tmp_path,
):
    path, looks = tmp_path / "partial" / "metrics.json", []

    def measure():
        looks.append(path.exists())
        return ({"exact": 0.5, "items": 2}, {"exact": 0.1}) if len(looks) == 2 else None

    async with partial_results(tmp_path, 4, measure, every_s=0.0):
        while len(looks) < 3:
            await asyncio.sleep(0)
        written = json.loads(path.read_text())
    assert looks[:3] == [False, False, True]
    assert written["config_general"]["partial_of"] == 4
    assert written["results"]["all"] == {"exact": 0.5, "items": 2}
    assert written["standard_errors"] == {"exact": 0.1}
    assert list(tmp_path.iterdir()) == []


async def test_partial_results_stay_where_the_evaluation_is_ended(tmp_path):
    looks = []
    with pytest.raises(KeyError):
        async with partial_results(
            tmp_path, 4, lambda: looks.append(1) or ({"a": 1}, {}), 0.0
        ):
            while len(looks) < 2:
                await asyncio.sleep(0)
            raise KeyError
    assert (tmp_path / "partial" / "metrics.json").exists()


async def test_without_a_folder_there_are_no_partial_results():
    async with partial_results(None, 4, lambda: 1 / 0, every_s=0.0):
        await asyncio.sleep(0)
