"""Which process of a local run uses which GPU."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch import gpus
from example_trainer.launch.gpus import SHARED, GpuShares, shared_out
from tests.trainer.launch.launch_plans import plan

VLLM = "inference.engine=vllm"
EIGHT = tuple("01234567")
TEACHERS = ("teachers.big.model=M", "teachers.big.engine=vllm", "teachers.small.model=S")


def shares(visible, *words, cpu=False):
    return shared_out(plan(VLLM, *words), tuple(visible), cpu)


@pytest.mark.parametrize(
    ("visible", "words", "servers", "trainer"),
    [
        ("01", (), ("0",), "1"),
        (EIGHT, (), ("0",), "1"),
        (EIGHT, ("trainer.nproc=4",), ("0",), "1,2,3,4"),
        (EIGHT, ("inference.count=2", "trainer.nproc=6"), ("0", "1"), "2,3,4,5,6,7"),
        (
            EIGHT,
            ("inference.count=2", "inference.tensor_parallel=2", "trainer.nproc=4"),
            ("0,1", "2,3"),
            "4,5,6,7",
        ),
        ("4567", (), ("4",), "5"),  # CUDA_VISIBLE_DEVICES of the launcher
        ("4567", ("inference.first_gpu=2",), ("6",), "4"),
        ("0123", ('trainer.gpus="0"',), ("1",), "0"),
        ("0123", ('trainer.gpus="2,3"', "inference.count=2"), ("0", "1"), "2,3"),
        ("0123", ("inference.first_gpu=3", 'trainer.gpus="1"'), ("3",), "1"),
        ("0123", ("trainer.env.CUDA_VISIBLE_DEVICES=0,1",), ("2",), "0,1"),
    ],
)
def test_servers_take_the_first_gpus_and_the_trainer_those_behind_them(
    visible, words, servers, trainer
):
    found = shares(visible, *words)
    assert (found.servers, found.trainer, found.memory_share) == (servers, trainer, None)
    assert len(found.lines) == 1 and trainer in found.lines[0]


@pytest.mark.parametrize(
    ("visible", "words", "servers", "trainer"),
    [
        ("0", (), ("0",), "0"),
        ("3", (), ("3",), "3"),
        ("01", ("inference.count=2",), ("0", "1"), "1"),
        ("01", ("trainer.nproc=2",), ("0",), "0,1"),
        ("01", ("inference.first_gpu=0", 'trainer.gpus="0"'), ("0",), "0"),
    ],
)
def test_too_few_gpus_are_shared_and_the_run_says_so(visible, words, servers, trainer):
    found = shares(visible, *words)
    assert (found.servers, found.trainer, found.memory_share) == (servers, trainer, SHARED)
    assert "server and trainer share GPU" in found.lines[1] and "40%" in found.lines[1]
    named = shares(visible, *words, "inference.memory_share=0.7")
    assert named.memory_share == 0.7 and len(named.lines) == 1


def test_a_server_with_gpus_of_its_own_env_keeps_them():
    found = shares("0123", "inference.env.CUDA_VISIBLE_DEVICES=2,3")
    assert (found.servers, found.trainer) == ((None,), "0")


@pytest.mark.parametrize(
    ("words", "share"),
    [
        # Both see the same list, and a server takes its first GPU: half of 0.9 each.
        (("inference.count=2", "inference.env.CUDA_VISIBLE_DEVICES='2,3'"), 0.45),
        (("inference.count=3", "inference.env.CUDA_VISIBLE_DEVICES='2'"), 0.3),
        # With the trainer on it: a quarter each, so that half is left.
        (
            (
                "inference.count=2",
                "inference.env.CUDA_VISIBLE_DEVICES='2'",
                "trainer.env.CUDA_VISIBLE_DEVICES='2'",
            ),
            0.25,
        ),
        (("inference.env.CUDA_VISIBLE_DEVICES='-1'",), None),
    ],
)
def test_servers_with_the_same_variable_share_their_first_gpus(words, share):
    found = shares("0123", *words)
    assert {*found.servers} == {None} and found.memory_share == share


@pytest.mark.parametrize(
    ("words", "trainer"),
    [
        (("trainer.env.CUDA_VISIBLE_DEVICES=''",), None),
        (("trainer.env.CUDA_VISIBLE_DEVICES='-1'",), None),
        (('trainer.gpus="-1"',), "-1"),
    ],
)
def test_a_trainer_whose_variable_names_no_gpu_takes_none(words, trainer):
    found = shares("0", *words)
    assert (found.servers, found.trainer, found.memory_share) == (("0",), trainer, None)


UUIDS = ("GPU-6a0b", "GPU-11c2")
INSTANCES = ("MIG-4f01", "MIG-4f02", "MIG-4f03")


@pytest.mark.parametrize("names", [UUIDS, INSTANCES])
def test_gpus_with_other_names_are_shared_out_by_their_order(names):
    found = shares(names)
    assert (found.servers, found.trainer, found.memory_share) == ((names[0],), names[1], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ('trainer.gpus="1"', "trainer.nproc=2"),
            r"trainer\.gpus names 1, and trainer\.nproc=2",
        ),
        (('trainer.gpus="1,1"', "trainer.nproc=2"), "needs 2 different GPUs"),
        (
            ("trainer.env.CUDA_VISIBLE_DEVICES=2,3", "trainer.nproc=3"),
            r"trainer\.env\.CUDA_VISIBLE_DEVICES names 2,3",
        ),
        (
            ("inference.env.CUDA_VISIBLE_DEVICES='3'", "inference.tensor_parallel=2"),
            r"inference\.env\.CUDA_VISIBLE_DEVICES names 3, and inference\.tensor_parallel=2",
        ),
    ],
)
def test_names_of_too_few_gpus_are_refused_with_the_setting(words, message):
    with pytest.raises(ConfigError, match=message):
        shares("0123", *words)


@pytest.mark.parametrize(
    "setting",
    ["trainer.nproc", "inference.tensor_parallel", "teachers.big.tensor_parallel"],
)
def test_a_process_on_several_instances_of_a_gpu_is_refused(setting):
    with pytest.raises(ConfigError, match=f"{setting}=2: CUDA gives a process one MIG"):
        shares(INSTANCES, *TEACHERS, f"{setting}=2")


def test_a_trainer_on_the_processor_leaves_all_gpus_to_the_servers():
    found = shares("0", cpu=True)
    assert (found.servers, found.trainer, found.memory_share) == (("0",), None, None)


def test_a_machine_without_gpus_shares_out_nothing():
    assert shares("", 'trainer.gpus="0"') == GpuShares((None,), "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("inference.tensor_parallel=4",), "need 4 GPUs from inference.first_gpu=0 on, and 2"),
        (("inference.first_gpu=2",), "from inference.first_gpu=2 on"),
        (("trainer.nproc=3",), "trainer.nproc=3 ranks need as many GPUs, and 2"),
    ],
)
def test_what_no_share_can_fit_is_refused_with_the_setting(words, message):
    with pytest.raises(ConfigError, match=message):
        shares("01", *words)


@pytest.mark.parametrize(
    ("variable", "count", "visible"),
    [
        (None, 2, ("0", "1")),
        ("5, 7", 2, ("5", "7")),
        ("5,7", 0, ()),
        ("", 0, ()),
        ("-1", 0, ()),
        ("5,-1,7", 1, ("5",)),  # CUDA reads up to the first negative number
        ("0,0", 0, ()),  # torch finds no device under a name twice
        ("GPU-6a0b,GPU-11c2", 2, UUIDS),
        ("MIG-4f01,MIG-4f02,MIG-4f03", 1, INSTANCES),
        ("MIG-GPU-6a0b/1/0,MIG-GPU-6a0b/2/0", 1, ("MIG-GPU-6a0b/1/0", "MIG-GPU-6a0b/2/0")),
    ],
)
def test_the_variable_of_the_launcher_names_what_children_see(
    monkeypatch, variable, count, visible
):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(gpus, "may_have_gpus", lambda: True)
    if variable is None:
        monkeypatch.delenv(gpus.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(gpus.VARIABLE, variable)
    assert gpus.visible_gpus() == visible


def test_the_server_of_evaluations_has_gpus_of_its_own():
    words = ("evaluation.where=dir", "evaluation.environments=gsm8k_server")
    found = shares(EIGHT, *words, "inference.tensor_parallel=2")
    assert (found.servers, found.trainer) == (("0,1", "2,3"), "4")


@pytest.mark.parametrize(
    ("visible", "words", "teachers", "trainer"),
    [
        (EIGHT, (), {"big": ("1", None), "small": ("2", None)}, "3"),
        (
            EIGHT,
            ("teachers.big.tensor_parallel=4", "trainer.nproc=2"),
            {"small": ("1", None), "big": ("2,3,4,5", None)},
            "6,7",
        ),
        (
            EIGHT,
            ("teachers.small.first_gpu=7",),
            {"big": ("1", None), "small": ("7", None)},
            "2",
        ),
        (
            EIGHT,
            ('trainer.gpus="1"', "teachers.small.env.CUDA_VISIBLE_DEVICES='5'"),
            {"big": ("2", None), "small": (None, None)},
            "1",
        ),
        # The servers share the first GPU, the trainer has the last.
        ("01", ("teachers.big.first_gpu=0",), {"big": ("0", 0.45), "small": ("1", 0.4)}, "1"),
        (
            "0",
            ("teachers.big.memory_share=0.3",),
            {"big": ("0", 0.3), "small": ("0", 1 / 6)},
            "0",
        ),
    ],
)
def test_teachers_take_the_gpus_behind_the_servers_or_a_share(
    visible, words, teachers, trainer
):
    found = shares(visible, *TEACHERS, *words)
    assert {name: gpus for name, (gpus, _) in found.teachers.items()} == {
        name: gpus for name, (gpus, _) in teachers.items()
    }
    for name, (_, share) in teachers.items():
        assert found.teachers[name][1] == pytest.approx(share)
    assert found.trainer == trainer
    assert [line for line in found.lines if "teacher big" in line]


def test_a_teacher_that_no_gpu_is_left_for_is_refused():
    with pytest.raises(ConfigError, match=r"teachers\.big\.tensor_parallel=2 needs 2 GPUs"):
        shares("0", *TEACHERS, "teachers.big.tensor_parallel=2")
