"""Multiple-choice questions with reasoning before the answer.

    python environments/mcqa_thinking_env.py serve --env.dataset_path questions.parquet

Data: NousResearch/AcademicMCQA, or rows with a question, its options and the right letter or
index. +1 for exactly one reasoning block followed by exactly one answer phrase with the right
letter, -1 otherwise.
"""

import re
import string

from pydantic import Field

from atroposlib.environments.common.single_turn import SingleTurnConfig, SingleTurnEnv
from atroposlib.envs.function_env.card import Card
from atroposlib.errors import DatasetUnavailable
from atroposlib.text.parts import answer_of, is_well_formed
from atroposlib.utils.datasets import load_rows

SYSTEM_PROMPT = (
    "Think the question through inside one pair of <think> </think> tags. Then state your "
    'choice once, in these words: "The answer is X", where X is the letter of an option.'
)
# The letter is a capital: "the answer is a matter of taste" names no option.
_ANSWER = re.compile(r"(?i:\banswer\s+is\s*:?)\s*[*(\[]*([A-Z])\b")


class MCQAConfig(SingleTurnConfig):
    """Settings of the questions."""

    dataset_name: str = Field(
        default="NousResearch/AcademicMCQA", description="data set on the hub"
    )
    eval_questions: int = Field(
        default=200, ge=1, description="questions held out; at most half of all"
    )


def question(name: str, row: dict) -> dict:
    """{"id", "text", "answer"} with options lettered from A, and the right letter.

    The question is in ``question`` or ``prompt``, options in ``options`` or ``choices``, the
    answer as letter or index in ``ground_truth`` or ``answer``. Options that the question
    already contains are not appended.
    """
    text = row.get("question") or row.get("prompt")
    options = row.get("options") or row.get("choices")
    answer = row["ground_truth"] if row.get("ground_truth") is not None else row.get("answer")
    if isinstance(options, dict):
        options = list(options.values())
    letter = answer_letter(answer, options or [])
    if not text or not options or letter is None:
        raise DatasetUnavailable(
            f"{name}: a row has a question (or prompt), options (or choices) and the right "
            "one's letter or index as ground_truth (or answer)"
        )
    if not all(str(option) in text for option in options):
        lines = [f"{a}. {option}" for a, option in zip(string.ascii_uppercase, options)]
        text = "\n".join([text, *lines])
    return {"id": name, "text": text, "answer": letter}


def answer_letter(answer, options: list) -> str | None:
    """Letter of an answer given as letter or as index from 0; None if it is no option."""
    letters = string.ascii_uppercase[: len(options)]
    text = str(answer).strip().upper()
    if text.isdigit():
        return letters[int(text)] if int(text) < len(letters) else None
    return text if len(text) == 1 and text in letters else None


def score(text: str, letter: str) -> float:
    """+1 for one reasoning block, then one answer phrase, with the right letter; else -1."""
    letters = _ANSWER.findall(answer_of(text))
    return 1.0 if is_well_formed(text) and letters == [letter] else -1.0


class MCQAThinkingEnv(SingleTurnEnv):
    """Asks multiple-choice questions and rewards a well-formed right choice."""

    name = "mcqa_thinking"
    env_config_cls = MCQAConfig
    card = Card(
        "questions",
        data="NousResearch/AcademicMCQA",
        licence="of the source",
        gold=lambda item: f"<think>Let me see.</think> The answer is {item['answer']}",
        floor=-1.0,
        wrong=lambda item: [f"I think that the answer is {item['answer']}"],
    )

    async def setup(self):
        config = self.config
        rows = load_rows(config.dataset_name, "train", path=config.dataset_path)
        questions = [question(f"{i}", row) for i, row in enumerate(rows)]
        self.hold_out(questions, config.eval_questions)

    def messages(self, item):
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": item["text"]},
        ]

    async def judge(self, item, text):
        return score(text, item["answer"])


if __name__ == "__main__":
    MCQAThinkingEnv.cli()
