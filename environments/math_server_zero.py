"""Mathematics for base models: no chat template, a think/answer prompt, stop strings.

    python environments/math_server_zero.py serve --env.dataset_path FOLDER
    python environments/math_server_zero.py evaluate --env.eval_sets '["math500"]'

Trained on DeepMath-103K, measured on AIME24, MATH-500, AMC23, Minerva and OlympiadBench, each
from the Hugging Face hub or from a file in ``dataset_path`` (``train.jsonl``,
``aime24.jsonl``, ...). +1 for the right boxed answer in its place, -1 otherwise. A truncated
answer stays in the group's baseline but has advantage zero.
"""

import logging
import random
import time
from pathlib import Path

from pydantic import Field

from atroposlib.environments.common.rollouts import (
    MIN_TRAINED_TOKENS,
    SampledConfig,
    SequentialEnv,
    draw_full,
    mean,
    trained_tokens,
)
from atroposlib.envs.function_env.card import Card
from atroposlib.envs.reward_fns.math_verify.checker import Correctness, MathVerifier
from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.text.parts import is_well_formed, split
from atroposlib.utils.datasets import load_rows
from atroposlib.utils.gathering import gather_bounded

PROMPT = (
    "Below, a user sets a problem and an assistant solves it. The assistant first works the "
    "problem out between <think> and </think>, and then gives the solution between <answer> "
    "and </answer>, with the final result as \\boxed{{result}}.\n\n"
    "User: {problem}\n\nAssistant: <think>"
)
# A base model continues with another question.
STOP = ["</answer>", "User:", "Assistant:"]
TRAINING = "zwhe99/DeepMath-103K"
EVAL_SETS = {  # name of the set and of its file: (name on the hub, split there)
    "aime24": ("HuggingFaceH4/aime_2024", "train"),
    "math500": ("HuggingFaceH4/MATH-500", "test"),
    "amc23": ("math-ai/amc23", "test"),
    "minerva": ("math-ai/minervamath", "test"),
    "olympiad": ("math-ai/olympiadbench", "test"),
}
COLUMNS = ("question", "problem", "final_answer", "answer")
logger = logging.getLogger(__name__)


class MathZeroConfig(SampledConfig):
    """Settings of the problems."""

    group_size: int = Field(
        default=16, ge=1, description="answers to one problem, scored together"
    )
    max_token_length: int = Field(
        default=16384, ge=1, description="most tokens of a sequence, reached by the curriculum"
    )
    start_tok_length: int = Field(
        default=4096, ge=1, description="most tokens of a sequence at the first step"
    )
    length_warmup_steps: int = Field(
        default=200, ge=0, description="steps from start_tok_length to max_token_length"
    )
    mask_too_long_completions: bool = Field(
        default=True, description="advantage zero for answers that were cut off"
    )
    dataset_path: str | None = Field(
        default=None,
        description="a folder with train.jsonl and a file per eval set (.jsonl, .json or "
        ".parquet); None: the hub",
    )
    eval_sets: list[str] = Field(
        default=list(EVAL_SETS), description=f"measured on, of {', '.join(EVAL_SETS)}"
    )
    eval_problems: int = Field(default=-1, description="problems of each set; -1: all")
    eval_temperature: float = Field(default=0.6, description="of evaluation")
    eval_max_tokens: int = Field(
        default=0, ge=0, description="most tokens of an evaluated sequence; 0: the limit now"
    )
    check_processes: int = Field(default=2, ge=1, description="processes that check answers")


def length_at(step: int, start: int, end: int, warmup_steps: int) -> int:
    """Most tokens of a sequence at ``step``: from ``start`` in a straight line to ``end``."""
    share = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return round(start + share * (end - start))


def answer_part(text: str) -> str | None:
    """Content of the answer tags, if a single answer follows a single block of reasoning.

    "so it is 4 </think> <answer> \\boxed{4} </answer>" gives " \\boxed{4} ". The prompt opened
    the reasoning; the closing answer tag may have been taken by the stop string.
    """
    text = "<think>" + text
    parts = split(text)
    before, opened, answer = parts.final.partition("<answer>")
    if not is_well_formed(text) or not opened or before.strip():
        return None
    answer, _, after = answer.partition("</answer>")
    if after.strip() or "<answer>" in answer or "<answer>" in (parts.reasoning or ""):
        return None
    return answer


def problem(name: str, row: dict) -> dict:
    """{"id", "problem", "answer"} of a row of any of the sets; of several answers the first."""
    text = row.get("question") or row.get("problem")
    answer = row["final_answer"] if row.get("final_answer") is not None else row.get("answer")
    if isinstance(answer, (list, tuple)):
        answer = answer[0] if answer else None
    if not text or answer is None:
        raise DatasetUnavailable(
            f"{name}: a row has a question (or problem) and a final_answer (or answer)"
        )
    return {"id": name, "problem": text, "answer": str(answer).strip().strip("$")}


def load_set(name: str, source: str, split: str, folder: str | None) -> list[dict]:
    """The problems of a set; in ``folder`` its file is called ``name``."""
    in_file = split if folder is None else name
    rows = load_rows(source, in_file, path=folder, columns=COLUMNS)
    return [problem(f"{name}/{i}", row) for i, row in enumerate(rows)]


def load_eval_sets(names: list[str], folder: str | None) -> dict[str, list[dict]]:
    """Load the named sets.

    Raises:
        ConfigError: a name is unknown, or ``folder`` is a file.
        DatasetUnavailable: a set is not available; the message names it and the options.
    """
    if names and folder is not None and not Path(folder).is_dir():
        raise ConfigError(
            f"--env.dataset_path {folder} is no folder: a file holds the training problems "
            "only; give a folder with a file per eval set, or --env.eval_sets '[]'"
        )
    loaded = {}
    for name in names:
        if name not in EVAL_SETS:
            raise ConfigError(f"--env.eval_sets: {name!r} is none of {', '.join(EVAL_SETS)}")
        try:
            loaded[name] = load_set(name, *EVAL_SETS[name], folder)
        except DatasetUnavailable as error:
            raise DatasetUnavailable(
                f"eval set {name}: {error}; or leave it out with --env.eval_sets"
            ) from error
    return loaded


class MathZeroEnv(SequentialEnv):
    """Poses problems to a base model and rewards the right result in the right form."""

    name = "math_zero"
    env_config_cls = MathZeroConfig
    default_settings = {"steps_per_eval": 25}
    card = Card(
        "mathematics",
        data="zwhe99/DeepMath-103K",
        licence="MIT",
        gold=lambda item: f"So.</think> <answer>\\boxed{{{item['answer']}}}</answer>",
        floor=-1.0,
        wrong=lambda item: [f"So.</think> \\boxed{{{item['answer']}}}"],
    )

    async def setup(self):
        self.verifier = MathVerifier(self.config.check_processes)
        folder = self.config.dataset_path
        self.train = load_set("train", TRAINING, "train", folder)
        random.Random(self.config.seed).shuffle(self.train)
        # process never evaluates, so it does not need the sets
        wanted = [] if self.process_mode else self.config.eval_sets
        self.eval_sets = load_eval_sets(wanted, folder)

    def length_now(self):
        config = self.config
        return length_at(
            self.curr_step,
            config.start_tok_length,
            config.max_token_length,
            config.length_warmup_steps,
        )

    async def sample(self, item, n, temperature, max_tokens, split):
        """``n`` checked answers to ``item``, each with its token-exact node."""
        prompt = PROMPT.format(problem=item["problem"])
        tokens = max_tokens - len(self.tokenizer.encode(prompt))
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.completion(
                prompt=prompt,
                n=n,
                max_tokens=max(1, tokens),
                temperature=temperature,
                stop=STOP,
                split=split,
            )
            nodes = managed.nodes_for(completion)
        answers = [
            {
                "prompt": item["problem"],
                "completion": choice.text,
                "expected": item["answer"],
                "finish_reason": choice.finish_reason,
                "verdict": await self.verdict(choice.text, item["answer"]),
            }
            for choice in completion.choices
        ]
        return list(zip(answers, nodes))

    async def verdict(self, text, gold):
        answer = answer_part(text)
        return Correctness.WRONG if answer is None else await self.verifier.check(answer, gold)

    async def collect_trajectories(self, item):
        temperature, length = self.config.temperature, self.length_now()
        rows = await draw_full(
            lambda n: self.sample(item, n, temperature, length, "train"),
            self.config.group_size,
            lambda row: (
                row[0]["verdict"] is not None and trained_tokens(row[1]) >= MIN_TRAINED_TOKENS
            ),
        )
        if rows is None:
            return None, []
        right = [answer["verdict"] is Correctness.CORRECT for answer, _ in rows]
        cut_off = [answer["finish_reason"] == "length" for answer, _ in rows]
        overrides = None
        if self.config.mask_too_long_completions:
            overrides = [{"set_advantage_to_zero": True} if cut else {} for cut in cut_off]
        group = from_nodes(
            [node for _, node in rows],
            [1.0 if correct else -1.0 for correct in right],
            metrics={
                "percent_correct": mean(right),
                "percent_cut_off": mean(cut_off),
                "max_tokens": length,
            },
            overrides=overrides,
        )
        return group, []

    async def evaluate(self, *args, **kwargs):
        started, temperature = time.time(), self.config.eval_temperature
        length = self.config.eval_max_tokens or self.length_now()
        metrics, samples = {}, []

        async def one(item):
            ((answer, _),) = await self.sample(item, 1, temperature, length, "eval")
            verdict = answer.pop("verdict")
            return {
                **answer,
                "exact": verdict is Correctness.CORRECT,
                "judged": verdict is not None,
            }

        for name, problems in self.eval_sets.items():
            wanted = self.config.eval_problems
            subset = problems if wanted < 0 else problems[:wanted]
            answers = await gather_bounded(subset, one, self.config.max_eval_workers)
            # over all problems: an unchecked answer does not count as right
            metrics[f"{name}_percent_correct"] = mean(answer["exact"] for answer in answers)
            samples += [{"set": name, **answer} for answer in answers]
        if not metrics:
            logger.warning("nothing is evaluated: --env.eval_sets is empty")
            return
        metrics["unjudged"] = sum(not sample["judged"] for sample in samples)
        await self.evaluate_log(
            metrics,
            start_time=started,
            generation_parameters={"temperature": temperature, "max_new_tokens": length},
            samples=samples,
        )


if __name__ == "__main__":
    MathZeroEnv.cli()
