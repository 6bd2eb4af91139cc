"""Copy a word of the data set; the part of AReaL's workflow in the runs of these files."""

from atroposlib.envs import environment
from atroposlib.utils.datasets import load_rows


def words(config):
    return load_rows("the words", "train", path=config.dataset_path)


@environment(
    words,
    settings={"dataset_path": ""},
    ensure_scores_are_not_same=False,
    max_tokens=8,
)
async def copy_word(task, model):
    answer = await model.chat(task["word"])
    return sum(a == b for a, b in zip(answer, task["word"])) / len(task["word"])


if __name__ == "__main__":
    copy_word.cli()
