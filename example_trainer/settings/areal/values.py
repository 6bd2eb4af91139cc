"""Values of AReaL's options as settings of this trainer, where they differ; see ``names``.

Each function takes the given options and returns settings, and perhaps a "note". A value
without a counterpart is a ConfigError that names what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atroposlib.errors import ConfigError
from example_trainer.settings.areal.defaults import is_supervised
from example_trainer.settings.areal.other_commands import TYPE

Given = Mapping[str, Any]
NORM_OPTIONS = "mean_level std_level group_size mean_leave1out std_unbiased eps"
# reward_norm (mean, std, mean_leave1out) -> estimator; the recipes AReaL ships.
ESTIMATORS = {
    ("group", "group", False): "grpo",
    ("group", None, False): "dr_grpo",
    ("group", "batch", False): "lite_ppo",
    ("group", None, True): "rloo",
    ("batch", "batch", False): "reinforce_pp",
    (None, None, False): "raw",
}

# Options that choose the formula of the loss; its further options bound the importance weight.
SWITCHES = {
    "type",
    "use_decoupled_loss",
    "recompute_logprob",
    "importance_sampling_level",
    "use_sapo_loss",
    "m2_threshold",
}


def level(options: Given, name: str) -> str | None:
    """A level of a norm: batch where left out; AReaL's files write none as null and "none"."""
    value = None if "" in options else options.get(name, "batch")
    return None if value in (None, "none", "null") else str(value)


def reward_norm(options: Given) -> dict[str, Any]:
    """The estimator whose baseline and scale this norm is; with a critic it is gae."""
    critic = options.get("critic.path")
    if critic is not None:
        if options.keys() & set(NORM_OPTIONS.split()):
            raise ConfigError("a critic serves advantage gae, which takes no reward_norm")
        return {"critic": True, "critic_model": critic, "advantage": "gae"}
    if not options.keys() - {"critic.path"}:
        return {}
    wanted = (
        level(options, "mean_level"),
        level(options, "std_level"),
        bool(options.get("mean_leave1out")),
    )
    if wanted not in ESTIMATORS:
        raise ConfigError(
            f"no estimator has mean_level {wanted[0]}, std_level {wanted[1]}"
            f"{' and mean_leave1out' if wanted[2] else ''}; set advantage= instead:"
            " grpo (group, group), dr_grpo (group, null), lite_ppo (group, batch),"
            " rloo (group leaving one out, null), reinforce_pp (batch, batch), raw (null, null)"
        )
    eps = {} if options.get("eps") is None else {"advantage_eps": float(options["eps"])}
    notes = without_effect(options, "group_size std_unbiased")
    if wanted[0] == "batch":
        notes.append("a norm over the batch counts each trained token once, not each row")
    return {"advantage": ESTIMATORS[wanted], **eps, **as_note(notes)}


def without_effect(options: Given, names: str) -> list[str]:
    """Notes about options of a norm that change nothing here."""
    reasons = {
        "group_size": "groups carry their own ids: group_size has no effect",
        "std_unbiased": "deviations are the population's: std_unbiased is false",
        "eps": "the deviation of advantages has a floor and no eps",
        "mean_leave1out": "the mean of advantages leaves none out",
    }
    return [reasons[name] for name in names.split() if options.get(name)]


def as_note(notes: list[str]) -> dict[str, Any]:
    return {"note": "; ".join(notes)} if notes else {}


def advantage_norm(options: Given) -> dict[str, Any]:
    wanted = (level(options, "mean_level"), level(options, "std_level"))
    names = {("batch", "batch"): "batch", ("group", "group"): "group", (None, None): "none"}
    if wanted not in names:
        raise ConfigError(
            "advantages are normalised over the batch (batch, batch), over each group (group,"
            f" group) or not at all, not with mean_level {wanted[0]} and std_level {wanted[1]}"
        )
    notes = without_effect(options, "group_size std_unbiased eps mean_leave1out")
    return {"advantage_norm": names[wanted], **as_note(notes)}


def loss(options: Given) -> dict[str, Any]:
    """Loss and importance weight, which AReaL's switches and the data's type choose together."""
    bounds = _importance(options) if options.keys() - SWITCHES else {}
    return {**bounds, **_formula(options)}


def _formula(options: Given) -> dict[str, Any]:
    if is_supervised({TYPE: options.get("type")}):
        return {"loss": "cross_entropy"}
    if options.get("m2_threshold") is not None:
        return {"loss": "m2po", "m2_threshold": options["m2_threshold"]}
    if options.get("use_sapo_loss"):
        return {"loss": "sapo", **_centre(options)}
    if options.get("importance_sampling_level") == "sequence":
        return {"loss": "gspo", **_centre(options)}
    if "use_decoupled_loss" not in options and "recompute_logprob" not in options:
        return {}
    if options.get("use_decoupled_loss"):
        return {"loss": "decoupled"}
    return {"loss": "ppo" if options.get("recompute_logprob") else "grpo", **_centre(options)}


def _centre(options: Given) -> dict[str, Any]:
    """Not decoupled: ratios to recomputed logprobs, without a weight, or to the sampler's."""
    if options.get("use_decoupled_loss"):
        return {}
    if options.get("recompute_logprob"):
        return {"importance_weight": "none"}
    return {"ratio_to": "sampler"}


def _importance(options: Given) -> dict[str, Any]:
    """How the weight proximal / behaviour is bounded."""
    # Beyond the cap AReaL leaves tokens out; only later versions can cut their weight.
    level, _, action = str(options.get("behave_imp_weight_mode", "token_mask")).partition("_")
    if "behav_imp_weight_cap" in options and level != "disabled":
        cap = options["behav_imp_weight_cap"]
        bounds = {"importance_weight": action, "importance_cap": cap}
        bounds |= {"importance_level": level} if level == "sequence" else {}
        return {} if cap is None else bounds
    if (
        "" in options or level == "disabled"
    ):  # AReaL then drops the weight silently; here it has to be explicit
        raise ConfigError(
            "without bounds AReaL leaves the importance weight out of the loss; if that is"
            " meant, set importance_weight=none"
        )
    if options.get("metric", "ratio") != "ratio":
        raise ConfigError("only the metric ratio bounds importance weights here")
    per_sequence = options.get("level") == "sequence"
    if per_sequence and options.get("agg", "mean") != "mean":
        raise ConfigError(
            "a sequence's weight is the mean of its log weights here; set agg=mean"
        )
    settings: dict[str, Any] = {"importance_level": "sequence" if per_sequence else "token"}
    if "action" in options:
        settings["importance_weight"] = "truncate" if options["action"] == "clamp" else "mask"
    if options.get("upper") is not None:
        settings["importance_cap"] = options["upper"]
    if options.get("lower") is not None:
        settings["importance_floor"] = options["lower"]
    return settings


def kl(options: Given) -> dict[str, Any]:
    """AReaL takes the KL off the reward, by the estimator k1 by default."""
    coefficient = options.get("kl_ctl") or 0
    if not coefficient:
        return {} if "kl_ctl" not in options else {"kl_coef": 0.0}
    return {
        "kl_coef": coefficient,
        "kl_in": "reward",
        "kl_estimator": options.get("kl_estimator") or "k1",
    }


def overlong(options: Given) -> dict[str, Any]:
    if not options.get("overlong_reward_penalty"):
        names = ("overlong_tokens", "overlong_penalty_factor")
        unused = [name for name in names if options.get(name) is not None]
        notes = (
            [f"{', '.join(unused)}: no effect without overlong_reward_penalty"]
            if unused
            else []
        )
        return {"overlong_tokens": 0, **as_note(notes)}
    if options.get("overlong_tokens") is None:
        raise ConfigError("overlong_reward_penalty needs overlong_tokens")
    factor = options.get("overlong_penalty_factor")
    settings = {"overlong_tokens": options["overlong_tokens"]}
    return settings if factor is None else {**settings, "overlong_penalty": factor}


def batch(options: Given) -> dict[str, Any]:
    """AReaL counts prompts, the trainer here sequences: n_samples of each prompt."""
    if options.get("prompts") is None or options.get("n_samples") is None:
        return {}
    return {
        "batch_size": options["n_samples"],
        "gradient_accumulation_steps": options["prompts"],
    }


def trackers(options: Given) -> dict[str, Any]:
    """Every tracker whose mode is not disabled, tensorboard by its path."""
    off = (None, False, "disabled")
    return {"trackers": [name for name, mode in options.items() if mode not in off]}


def run_name(options: Given) -> dict[str, Any]:
    words = [options.get("experiment_name"), options.get("trial_name")]
    return {"run_name": "_".join(str(word) for word in words if word is not None) or None}


def recover_mode(value: Any) -> Any:
    """Later versions write on and off, which YAML reads as booleans in places."""
    return {"on": "auto", True: "auto", "off": "disabled", False: "disabled"}.get(value, value)


def publisher(value: Any) -> str:
    names = {"disk": "disk", "xccl": "distributed", "nccl": "distributed"}
    if value not in names:
        raise ConfigError(f"weights travel by disk or xccl, not {value!r}")
    return names[value]


def optimizer(value: Any) -> Any:
    names = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}
    if value not in names:
        raise ConfigError(
            f"{value!r} is not an optimizer here: adam, sgd, or optimizer=adamw_8bit|adafactor"
        )
    return names[value]


def staleness(options: Given) -> dict[str, Any]:
    """async_training false: a batch is generated by the weights that it trains."""
    if options.get("async_training") is False:
        return {"max_staleness": 0}
    if "max_head_offpolicyness" in options:
        return {"max_staleness": options["max_head_offpolicyness"]}
    return {}
