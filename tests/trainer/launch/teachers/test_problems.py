"""Problems of a plan with its teachers, each under the name of its setting."""

from __future__ import annotations

import pytest

from atroposlib.testing.tiny import char_tokenizer, write_tiny_model
from example_trainer.launch.check import problems_of, submission_problems
from example_trainer.launch.roles import teaching_problems
from tests.trainer.launch.launch_plans import plan
from tests.trainer.launch.teachers.teacher_plans import BIG, HAS_BIG, taught_plan

OWN_LOSS = "trainer.settings.algorithms.gsm8k_server"


def test_a_sound_plan_has_no_problem_with_its_teachers():
    assert [*teaching_problems(taught_plan()), *teaching_problems(plan())] == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("environments.0.config.env.teacher.base_url=bg", BIG),
            "bg is neither an address nor a",
        ),
        (("environments.0.config.env.teacher.base_url=bg", BIG), "did you mean big"),
        ((HAS_BIG,), "teachers of the plan: none"),
        ((BIG,), "teachers.big: no environment has it"),
        (("teachers.policy.model=M",), "teachers.policy: a name has letters"),
        (("teachers={a b: {model: M}}",), "teachers.a b: a name has letters"),
        ((BIG, HAS_BIG, f"{OWN_LOSS}.loss=jsd"), "top_k is 0, and loss jsd compares"),
        ((BIG, HAS_BIG, "loss=distillation"), "top_k is 0, and loss distillation compares"),
        ((BIG, HAS_BIG, "distill_coef=0.1"), "top_k is 0, and loss distillation compares"),
    ],
)
def test_a_problem_is_named_before_the_start(words, problem):
    lines = [*teaching_problems(plan(*words))]
    assert any(problem in line for line in lines), lines
    assert any(problem in line for line in submission_problems(plan(*words), False))


def test_the_likeliest_tokens_are_only_asked_for_by_losses_that_read_them():
    for loss, added in (("reverse_kl", 0), ("reinforce", 0)):
        found = plan(BIG, HAS_BIG, f"loss={loss}", f"distill_coef={added}")
        assert [*teaching_problems(found)] == []
    found = plan(BIG, HAS_BIG, "loss=jsd", "environments.0.config.env.teacher.top_k=4")
    assert [*teaching_problems(found)] == []


def test_a_vocabulary_that_lacks_tokens_is_refused_where_both_are_on_this_machine(tmp_path):
    student = write_tiny_model(tmp_path / "student")
    teacher = write_tiny_model(tmp_path / "teacher")
    named = (f"model_name={student}", f"teachers.big.model={teacher}", HAS_BIG)
    assert [*teaching_problems(plan(*named))] == []
    char_tokenizer("xyz").save_pretrained(tmp_path / "foreign")
    foreign = f"teachers.big.model={tmp_path / 'foreign'}"
    (problem,) = teaching_problems(plan(*named, foreign))
    assert (
        problem.startswith("teachers.big.model: the teacher's tokenizer")
        and "lacks" in problem
    )


def test_a_model_and_an_engine_that_are_not_here_are_refused(tmp_path):
    found = plan(
        f"teachers.big.model={tmp_path / 'none'}", "teachers.big.engine=sglang", HAS_BIG
    )
    lines = " ".join(problems_of(found))
    assert "sglang is not installed here" in lines
    found = plan(
        f"teachers.big.model={tmp_path / 'none'}", "teachers.big.engine=local", HAS_BIG
    )
    assert f"no directory {tmp_path / 'none'}" in " ".join(problems_of(found))
