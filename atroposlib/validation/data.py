"""Checks of the tasks: loading, split, and answers that stand in a prompt."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator

from atroposlib.envs.rollout.groups import plain
from atroposlib.validation import probes
from atroposlib.validation.replies import Offences
from atroposlib.validation.report import Proof
from atroposlib.validation.subject import Case, Subject, Try, case_of

SEED = {"id", "seed", "source"}  # keys of a task that is made from its seed
LEAST_VALUE = 6  # characters of an answer that is looked for in a variable or a file name


async def loads(subject: Subject, limit: float) -> Offences:
    """Unique ids, tasks with a JSON form, no connection to another machine."""
    counts = Counter(item["id"] for item in subject.items)
    offences = [
        Proof(name, note=f"{n} tasks have this id") for name, n in counts.items() if n > 1
    ]
    offences += [Proof("", note=f"a connection to {host}") for host in subject.refused]
    # Items of a class stay in its process.
    for item in () if subject.of_class else subject.items[: len(subject.cases)]:
        try:
            json.dumps(plain(item["task"]), allow_nan=False)
        except (TypeError, ValueError) as error:
            offences.append(Proof(item["id"], note=f"no JSON: {error}"))
    return offences, f"{len(subject.items)} tasks read"


async def split(subject: Subject, limit: float) -> Offences:
    """No task is trained and held out, by its id or by its prompt."""
    held_out = subject.env.held_out[: len(subject.cases)]
    trained = {item["id"] for item in subject.items}
    ids = {probes.normalise_text(case.prompt): case.id for case in subject.cases}
    offences = [
        Proof(i["id"], note="its id is trained too") for i in held_out if i["id"] in trained
    ]
    # Games may share their first message: the seed identifies the task.
    drawn = all(isinstance(i["task"], dict) and SEED >= set(i["task"]) for i in held_out)
    identify = not drawn and len(ids) > len(subject.cases) / 2
    for item in held_out if identify and not offences else ():
        case = await case_of(subject, item)
        prompt = probes.normalise_text(case.prompt)
        if prompt and prompt in ids:
            offences.append(Proof(case.id, note=f"has the prompt of {ids[prompt]}"))
    return offences, f"{len(subject.env.held_out)} held-out tasks"


async def leaks(subject: Subject, limit: float) -> Offences:
    """The answer in prompt, tools, environment variables or file names."""
    golden = subject.golden[: subject.few(32)]
    answers = {probes.core(case.gold[-1]) for case in golden}
    offences: list[Proof] = []
    for case in golden:
        answer = probes.core(case.gold[-1])
        bare = await subject.play(Try(case, "", "nothing"))
        tools = json.dumps([*bare.tools], default=str)
        where = {"the prompt": case.prompt, "a tool": tools}
        for name, text in where.items():
            wrong_count = sum(probes.contains(text, wrong) for wrong in answers - {answer})
            # Options of a question hold the answers of other questions too.
            if probes.contains(text, answer) and wrong_count < 2:
                offences.append(Proof(case.id, answer, note=f"the answer stands in {name}"))
        place = hidden_place(case, answer)
        offences += [Proof(case.id, answer, note=f"the answer stands in {place}")] * bool(
            place
        )
    share = len({proof.task for proof in offences}) / max(1, len(golden))
    return offences if share > limit else [], f"in {share:.0%} of {len(golden)} tasks"


def hidden_place(case: Case, answer: str) -> str:
    """A variable of this process or a file of its folder that holds the answer."""
    if len(answer) < LEAST_VALUE:
        return ""
    values = (f"the variable {k}" for k, v in os.environ.items() if probes.contains(v, answer))
    return next(values, "") or next(files_named(answer), "")


def files_named(answer: str) -> Iterator[str]:
    for name in os.listdir("."):
        if probes.contains(name.replace("_", " "), answer):
            yield f"the file name {name}"
