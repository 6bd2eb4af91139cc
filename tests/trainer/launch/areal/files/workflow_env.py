"""An environment with the settings that workflows of AReaL read."""

from atroposlib.envs import environment

SETTINGS = {"max_turns": 1, "n_trajs": 1, "turn_discount": 1.0, "export_style": ""}


@environment(
    [{"question": "1 + 1?"}],
    settings={**SETTINGS, "tir": {}, "reward_fn_path": "", "dataset_name": ""},
    max_tokens=8,
)
async def answer_in_turns(task, model):
    return float("2" in await model.chat(task["question"]))


if __name__ == "__main__":
    answer_in_turns.cli()
