"""Models of the checks: random weights that round as a trained model's do, and a reference.

Weights drawn as usual have logits near zero, whose logprobs round by a fiftieth of a trained
model's: no limit could be missed. Here the logits have a trained model's entropy, and most of
the rounding comes from what the arithmetic decides: the residual stream and the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from atroposlib.testing.tiny import ALPHABET, ROLE_TOKENS, char_tokenizer
from example_trainer.data.rows import Row
from gpuchecks.figures import Place
from trainerbench.workload import SIZES, Workload, model_config

ENTROPY = 1.75  # nats per token, as of a trained model that samples freely
# What all layers add to the residual stream, over the embedding. At 0.4 the reference rounds the
# tiny shape's logprobs by 0.0064 nats, rounded logits give 0.0128 and a rounded residual stream
# 0.0114; at 0.7 the products of the layers hide half of that.
ADDED = 0.4
TOKENS = 96  # measured for entropy and ADDED


def workload(place: Place, **real: Any) -> Workload:
    """Rows of these lengths on a GPU, few and short rows in a dry run."""
    dry = {"groups": 2, "group_size": 4, "prompt": 16, "median": 20, "shortest": 4}
    dry |= {"longest": 60, "rows_per_pass": 4, "checkpointing": False}
    return Workload(
        size=place.size,
        device=place.device,
        threads=torch.get_num_threads(),
        model=str(weights(place)),
        **(real if place.on_cuda else dry),
    )


def weights(place: Place) -> Path:
    """A directory with random bfloat16 weights of a shape, and a tokenizer of all its ids.

    The first ids are characters; the rest are words that no text contains.
    """
    from transformers import AutoModelForCausalLM

    directory = place.scratch / f"model-{place.size}"
    if (directory / "model.safetensors").exists():
        return directory
    vocabulary = SIZES[place.size].vocabulary
    words = [f"<{i}>" for i in range(vocabulary - len(ALPHABET) - len(ROLE_TOKENS))]
    alphabet: Any = [*ALPHABET, *words]
    tokenizer = char_tokenizer(alphabet)
    config = model_config(
        place.size,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(place.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    scale_to_trained(model)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@torch.no_grad()
def scale_to_trained(model: Any) -> None:
    """Redraw a decoder with RMS norms, its layers adding ``ADDED``, its logits of ``ENTROPY``."""
    embedding = model.get_input_embeddings().weight
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter is not embedding:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    tokens = torch.randint(8, len(embedding), (1, TOKENS), device=embedding.device)
    residual_T_D = scale_layers(model, tokens)
    # Random signs: a tied head would else predict the token that was read.
    weight = model.model.norm.weight
    weight.copy_(torch.randint(0, 2, weight.shape, device=weight.device) * 2 - 1)
    normed_T_D = rms_norm(residual_T_D, weight.shape) * weight.float()
    logits_T_V = normed_T_D @ model.get_output_embeddings().weight.float().T
    weight.mul_(scale_of_entropy(logits_T_V, ENTROPY))


def scale_layers(model: Any, tokens: Tensor) -> Tensor:
    """Scale what each layer adds until their sum is ``ADDED``; the residual stream (T, D)."""
    embedded_T_D = model.get_input_embeddings().weight[tokens[0]].float()
    size = embedded_T_D.square().mean().sqrt()
    for _ in range(10):
        residual_T_D = residual_stream(model, tokens)
        added = float((residual_T_D - embedded_T_D).square().mean().sqrt() / size)
        if abs(added / ADDED - 1) < 0.05:
            return residual_T_D
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(ADDED / added)
    raise RuntimeError(f"the layers add {added:.3g} of the embedding, not {ADDED}")


def residual_stream(model: Any, tokens: Tensor) -> Tensor:
    """Residual stream (T, D) of a row in float32, as the last norm reads it."""
    streams: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(
        lambda module, inputs: streams.append(inputs[0][0].float())
    )
    model.model(tokens)
    hook.remove()
    return streams[0]


def scale_of_entropy(logits: Tensor, entropy: float) -> float:
    """The factor of logits (T, V) whose softmax has a mean entropy in nats, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(30):
        middle = (low + high) / 2
        logprobs = (middle * logits).log_softmax(-1)
        if float(-(logprobs.exp() * logprobs).sum(-1).mean()) > entropy:
            low = middle
        else:
            high = middle
    return high


class Reference:
    """Transformers' own pass of a row at a time, without code of this package.

    In bfloat16 products round; the residual stream and the sums of the head are float32.
    """

    def __init__(self, model: Path, device: str):
        from transformers import AutoModelForCausalLM

        load = AutoModelForCausalLM.from_pretrained
        self.model: Any = load(model, dtype=torch.float32).to(device)
        self.device = torch.device(device)

    @torch.no_grad()
    def logprobs(self, row: Row, dtype: torch.dtype) -> Tensor:
        """(trained tokens, V) in float32."""
        tokens = torch.tensor([row.tokens], device=self.device)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            hidden_T_D = self.model.model(tokens).last_hidden_state[0]
        trained_T_D = hidden_T_D[torch.tensor(row.trained, device=self.device)]
        head_V_D = self.model.get_output_embeddings().weight
        logits_T_V = trained_T_D.to(dtype).float() @ head_V_D.to(dtype).float().T
        return logits_T_V.log_softmax(-1)

    def of_labels(self, rows: Sequence[Row], dtype: torch.dtype) -> Tensor:
        """(N,) of the trained tokens of all rows, on the CPU."""
        parts = []
        for row in rows:
            labels = torch.tensor([row.labels[j] for j in row.trained], device=self.device)
            parts.append(self.logprobs(row, dtype).gather(-1, labels[:, None])[:, 0].cpu())
        return torch.cat(parts)

    def with_likely_labels(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with labels sampled from the model: likely tokens, large logits."""
        generator = torch.Generator(self.device).manual_seed(0)
        likely = []
        for row in rows:
            probabilities = self.logprobs(row, torch.float32).exp()
            drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
            labels = list(row.labels)
            for place, token in zip(row.trained, drawn.tolist()):
                labels[place] = token
            likely.append(replace(row, labels=labels))
        return likely
