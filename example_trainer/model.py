"""The policy: a causal language model, and the logprobs it gives to packed rows.

Letters: P packs of L nodes, D hidden size, H positions that need logits, V vocabulary,
N (row, token) pairs, B rows of T trained tokens.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from atroposlib.errors import ConfigError
from atroposlib.wire import MASKED_LOGPROB, MASKED_VERSION
from example_trainer.config import TrainingConfig
from example_trainer.data import Row
from example_trainer.packing import Pack, Pass, pack_rows, padded, passes, plan_pass

# Logits of this many positions exist at a time. Beyond it they are made again in the
# backward pass: a vocabulary of 150,000 costs 0.6 MB per position in float32.
HEAD_CHUNK = 2048
# Sharing prefixes must not change a logprob by more than float32 rounding does.
PROBE_TOLERANCE = 1e-3
PROBE_TOKENS = 6


@dataclass
class Scores:
    """What the policy says about the trained tokens of a pass; 0 where a row has fewer."""

    logprobs: Tensor  # (B, T)
    entropy: Tensor  # (B, T) of the distribution at the row's temperature
    mask: Tensor  # (B, T) bool


@dataclass
class Policy:
    """The model being trained, its tokenizer, and how its rows may be packed."""

    model: Any  # a transformers causal language model; its parameters are float32
    tokenizer: Any
    device: torch.device
    compute_dtype: torch.dtype
    max_tokens_per_pass: int
    max_tokens_per_row: int = 2048
    share_prefixes: bool = False
    attention_crossover: float = float("inf")  # see packing.pack_rows

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def plan(self, rows: Sequence[Row]) -> list[Pass]:
        """Forward passes that score every trained token of ``rows``."""
        trained = {i: row for i, row in enumerate(rows) if row.trained}
        ids = list(trained)
        packs = pack_rows(
            list(trained.values()),
            max_tokens=self.max_tokens_per_pass,
            crossover=self.attention_crossover,
            share=self.share_prefixes,
        )
        for pack in packs:
            pack.rows = [ids[i] for i in pack.rows]
        return [plan_pass(some, rows) for some in passes(packs, self.max_tokens_per_pass)]

    def score(self, plan: Pass, *, entropy_grad: bool = False) -> Scores:
        """Logprobs and entropy of the trained tokens of one pass."""
        hidden = self._hidden(plan)  # (P * L, D)
        picked = hidden[_ids(plan.nodes, self.device)]  # (H, D)
        pair_logprobs, node_entropy = self._head(picked, plan, entropy_grad)  # (N,), (H,)
        rows, columns = _ids(plan.rows, self.device), _ids(plan.columns, self.device)
        zeros = torch.zeros(plan.shape, device=self.device)
        pair_entropy = node_entropy[_ids(plan.head_index, self.device)]
        return Scores(
            logprobs=zeros.index_put((rows, columns), pair_logprobs),
            entropy=zeros.index_put((rows, columns), pair_entropy),
            mask=zeros.index_put((rows, columns), torch.ones_like(pair_logprobs)) > 0,
        )

    def _hidden(self, plan: Pass) -> Tensor:
        ids = padded((pack.tokens for pack in plan.packs), plan.length, 0)
        positions = padded((pack.positions for pack in plan.packs), plan.length, 0)
        with self._autocast():
            output = self.model.base_model(
                input_ids=_ids(ids, self.device),
                position_ids=_ids(positions, self.device),
                attention_mask=attention_mask(plan.packs, plan.length, self.device),
                use_cache=False,
            )
        hidden: Tensor = output.last_hidden_state.flatten(0, 1)
        return hidden

    def _head(self, picked: Tensor, plan: Pass, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        temperatures = torch.tensor(plan.temperatures, device=self.device)
        pairs = _ids(plan.head_index, self.device)
        targets = _ids(plan.targets, self.device)
        logprobs = torch.zeros(len(plan.targets), device=self.device)
        entropies = []
        for start in range(0, len(picked), HEAD_CHUNK):
            end = min(start + HEAD_CHUNK, len(picked))
            here = ((pairs >= start) & (pairs < end)).nonzero().squeeze(1)
            inputs = (
                picked[start:end],
                temperatures[start:end],
                pairs[here] - start,
                targets[here],
                entropy_grad,
            )
            if len(picked) > HEAD_CHUNK and torch.is_grad_enabled():
                scored, entropy = checkpoint(self._head_chunk, *inputs, use_reentrant=False)
            else:
                scored, entropy = self._head_chunk(*inputs)
            logprobs = logprobs.index_put((here,), scored)
            entropies.append(entropy)
        return logprobs, torch.cat(entropies)

    def _head_chunk(
        self, picked: Tensor, temperatures: Tensor, pairs: Tensor, targets: Tensor, grad: bool
    ) -> tuple[Tensor, Tensor]:
        with self._autocast():
            logits = self.model.get_output_embeddings()(picked)  # (h, V)
        logits = logits.float() / temperatures[:, None]
        normaliser = logits.logsumexp(-1)  # (h,)
        logprobs = logits[pairs, targets] - normaliser[pairs]
        with contextlib.nullcontext() if grad else torch.no_grad():
            entropy = normaliser - (torch.softmax(logits, -1) * logits).sum(-1)
        return logprobs, entropy

    @torch.no_grad()
    def logprobs_of(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """Logprob of every token but the first of each sequence, at temperature 1."""
        rows = [
            fully_trained_row(tokens, f"sequence {i}") for i, tokens in enumerate(sequences)
        ]
        result: list[list[float]] = [[] for _ in rows]
        for plan in self.plan(rows):
            scored = self.score(plan).logprobs.cpu()
            for b, i in enumerate(plan.row_ids):
                result[i] = scored[b, : len(rows[i].labels)].tolist()
        return result

    def _autocast(self) -> Any:
        if self.compute_dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)


def fully_trained_row(tokens: list[int], group: str) -> Row:
    """A row of which every token but the first has a label."""
    n = len(tokens) - 1
    return Row(tokens, tokens[1:], [MASKED_LOGPROB] * n, [MASKED_VERSION] * n, 0.0, group)


def attention_mask(packs: Sequence[Pack], length: int, device: torch.device) -> Tensor | None:
    """(P, 1, L, L) bool, True where a node attends; None where plain causal does the same."""
    if all(pack.parents == list(range(-1, len(pack.parents) - 1)) for pack in packs):
        return None
    mask = torch.zeros(len(packs), 1, length, length, dtype=torch.bool)
    for p, pack in enumerate(packs):
        ancestors = mask[p, 0].numpy()  # the same memory
        for node, parent in enumerate(pack.parents):
            if parent >= 0:
                ancestors[node] = ancestors[parent]
            ancestors[node, node] = True
        # Padding attends to itself: a row of the softmax with no key at all is NaN.
        for node in range(len(pack.parents), length):
            ancestors[node, node] = True
    return mask.to(device)


def load(cfg: TrainingConfig) -> Policy:
    """Load model and tokenizer, and find out whether its rows may share prefixes.

    Raises:
        ConfigError: the model cannot be loaded, or changes logits after its output head.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]
    try:
        tokenizer = AutoTokenizer.from_pretrained(cfg.model_name)
        # float32 parameters whatever the compute dtype: an update of 1e-6 of a bfloat16
        # weight rounds to nothing.
        model: Any = AutoModelForCausalLM.from_pretrained(
            cfg.model_name, dtype=torch.float32, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model_name {cfg.model_name!r} cannot be loaded: {error}"
        ) from error
    device = torch.device(cfg.device)
    model.to(device)
    # Dropout would make the trainer's policy another one than the sampler's.
    modules: list[Any] = list(model.modules())
    for module in modules:
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(vars(module).get("attention_dropout"), float):
            module.attention_dropout = 0.0
    model.eval()
    checkpointing = cfg.gradient_checkpointing
    if cfg.on_cuda if checkpointing is None else checkpointing:
        # Named so since transformers 5.23; the older name goes with version 6.
        older = "gradient_checkpointing_enable"
        newer = "activation_checkpointing_enable"
        getattr(model, newer if hasattr(model, newer) else older)({"use_reentrant": False})
        model.train()
    dtype = torch.bfloat16 if cfg.compute_dtype == "bfloat16" else torch.float32
    policy = Policy(model, tokenizer, device, dtype, cfg.max_tokens_per_pass)
    policy.max_tokens_per_row = min(cfg.seq_len, model_positions(model))
    policy.attention_crossover = attention_crossover(model)
    policy.share_prefixes = probe_sharing(policy) and cfg.seq_len <= attention_window(model)
    return policy


def resolve_device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def attention_crossover(model: Any) -> float:
    """Tokens of context at which attention costs as much as all matrices of the layers.

    Per token 2 x parameters FLOPs against 4 x layers x hidden size FLOPs per key.
    """
    config = model.config.get_text_config()
    embeddings = {id(m.weight) for m in (model.get_input_embeddings(),)}
    embeddings.add(id(model.get_output_embeddings().weight))
    matrices = sum(p.numel() for p in model.parameters() if id(p) not in embeddings)
    return float(matrices / (2 * config.num_hidden_layers * config.hidden_size))


def model_positions(model: Any) -> int:
    """Tokens of the longest sequence the model was made for."""
    positions = model.config.get_text_config().to_dict().get("max_position_embeddings")
    return int(positions) if positions else sys.maxsize


def attention_window(model: Any) -> float:
    """Keys a layer sees at most. A mask of ours replaces the model's window."""
    settings = model.config.get_text_config().to_dict()
    window = settings.get("sliding_window")
    return window if window and settings.get("use_sliding_window", True) else float("inf")


@torch.no_grad()
def probe_sharing(policy: Policy) -> bool:
    """Score two rows with a shared prefix both ways, against the model's own logits.

    A model that ignores the mask or the positions, such as a recurrent one, must not share.

    Raises:
        ConfigError: even plain rows score otherwise than by the model's own logits.
    """
    stem = list(range(1, PROBE_TOKENS))
    rows = [fully_trained_row(stem + tail, "probe") for tail in ([2, 3], [4, 5, 6])]
    kept = policy.share_prefixes, policy.compute_dtype, policy.attention_crossover
    policy.compute_dtype, policy.attention_crossover = torch.float32, float("inf")
    worst = {}
    for share in (False, True):
        policy.share_prefixes = share
        worst[share] = max(_distance(policy, plan, rows) for plan in policy.plan(rows))
    policy.share_prefixes, policy.compute_dtype, policy.attention_crossover = kept
    if worst[False] > PROBE_TOLERANCE:
        raise ConfigError(
            f"{type(policy.model).__name__} changes its logits after the output head"
            f" (logprobs differ by {worst[False]:.3g}); such models cannot be trained yet"
        )
    return worst[True] <= PROBE_TOLERANCE


def _distance(policy: Policy, plan: Pass, rows: Sequence[Row]) -> float:
    """Largest difference between scores of a pass and the model's own forward."""
    scored = policy.score(plan).logprobs
    worst = 0.0
    for b, i in enumerate(plan.row_ids):
        logits = policy.model(_ids([rows[i].tokens], policy.device), use_cache=False).logits[0]
        expected = torch.log_softmax(logits[:-1].float(), -1)
        expected = expected.gather(-1, _ids(rows[i].labels, policy.device)[:, None])[:, 0]
        worst = max(worst, float((scored[b, : len(expected)] - expected).abs().max()))
    return worst


def _ids(values: Any, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
