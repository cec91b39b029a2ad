"""From scored samples to micro-batches: padded rows, sorted by length, within a budget of tokens.

Samples of one group begin with the same prompt: such samples share a row in which the prompt stands once and each
continuation attends to it and to itself. Rows are padded on the right, where causal attention never looks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import Tensor

from agentgym.errors import UsageError
from agentgym.trainers.loss import TokenBatch, sample_weights
from agentgym.trainers.opd import OpdTokens
from agentgym.types import Sample, ScoredSample, TokenSpan

MAX_SHARED_ROW = 1024  # tokens; attention is quadratic in the length of a row
ATTENTION_LENGTH = 4096  # tokens at which a row's attention costs about as much as its matrix products


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One forward pass: B rows of T tokens, and the N trained tokens in them.

    Token `target_N` is predicted from position `source_N` of the flattened rows, and is of sample `sample_N` of the
    batch that was planned; a sample's tokens are in order. `branch_BT` is None where every row is one sample.
    """

    ids_BT: Tensor
    position_BT: Tensor
    branch_BT: Tensor | None
    source_N: Tensor
    target_N: Tensor
    temperature_N: Tensor
    sample_N: Tensor
    tokens: TokenBatch
    spans: tuple[tuple[int, int], ...] = ()  # sample and span in it that each number in `tokens.span_N` stands for
    old_N: Tensor | None = None  # log-probs before the first update, where there is more than one
    reference_N: Tensor | None = None  # log-probs of the reference model, where there is one
    opd: OpdTokens | None = None  # what distillation needs, where any token has that term

    @property
    def inputs(self) -> tuple[Any, ...]:
        """What `TokenScorer` takes: with distillation the targets are the sampled token and those of the support."""
        targets = self.target_N if self.opd is None else torch.cat([self.target_N[:, None], self.opd.ids_NK], 1)
        return self.inputs_for(targets)

    def inputs_for(self, targets: Tensor) -> tuple[Any, ...]:
        """The same with other targets (N x K)."""
        return (self.ids_BT, self.position_BT, self.mask_B1TT, self.source_N, targets, self.temperature_N)

    @property
    def distilled(self) -> bool:
        """Whether any token has an OPD term."""
        return bool((self.tokens.opd_weight_N > 0).any())

    @property
    def mask_B1TT(self) -> Tensor | None:
        """Additive attention mask: causal, and across branches only to the shared prefix (branch 0)."""
        if self.branch_BT is None:
            return None
        key, query = self.branch_BT[:, None, :], self.branch_BT[:, :, None]
        length = self.branch_BT.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=key.device).tril()
        allowed = ((key == 0) | (key == query)) & causal
        return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[:, None]

    def blank(self) -> MicroBatch:
        """The same shape with nothing to learn: what a rank computes while others still have work."""
        zeros = torch.zeros_like(self.tokens.weight_N)
        nothing = torch.zeros_like(self.tokens.rl_mask_N)
        tokens = replace(
            self.tokens, rl_mask_N=nothing, missing_N=nothing, rl_weight_N=zeros, weight_N=zeros, opd_weight_N=zeros
        )
        return replace(self, tokens=tokens)

    def to(self, device: torch.device) -> MicroBatch:
        """This micro-batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        tokens = replace(self.tokens, **{name: value.to(device) for name, value in vars(self.tokens).items()})
        opd = None if self.opd is None else self.opd.to(device)
        return replace(self, **moved, tokens=tokens, opd=opd)


@dataclass(frozen=True)
class Row:
    """Samples (by index) whose first `prefix` tokens are the same, laid out as prefix, rest, rest, ..."""

    samples: tuple[int, ...]
    prefix: int
    length: int


def unscored(sample: Sample) -> ScoredSample:
    """A sample to be learned by heart or only looked at: no advantage."""
    whole = TokenSpan(turn=0, start=0, end=len(sample.ids))
    return ScoredSample(sample=msgspec.structs.replace(sample, spans=(whole,)), advantages=(0.0,))


def split_updates(samples: Sequence[ScoredSample], n: int) -> list[list[ScoredSample]]:
    """The batch in `n` parts, one per optimiser step; each group is spread over all parts."""
    return [part for part in (list(samples[start::n]) for start in range(n)) if part]


def plan(
    samples: Sequence[ScoredSample],
    *,
    micro_batch_tokens: int,
    world: int = 1,
    aggregation: str = "token_mean",
    max_length: int = 1024,
    share_prefixes: bool = True,
) -> list[MicroBatch]:
    """The micro-batches of one optimiser step, a multiple of `world` of them: rank r takes every world-th from r.

    Weights come from all `samples`, so the sum over all micro-batches of all ranks is the loss of the whole batch.
    A sample with nothing to train on is in no micro-batch.

    Raises:
        UsageError: a trained token is the first of its sample or belongs to no span.
    """
    flat = [_flatten(scored) for scored in samples]
    counts_B = torch.tensor([len(tokens.position) for tokens in flat])
    rl_counts_B = torch.tensor([sum(value is not None for value in tokens.behaviour) for tokens in flat])
    opd_counts_B = torch.tensor([sum(tokens.hinted) for tokens in flat])
    weights, rl_weights, opd_weights = (
        sample_weights(counts, aggregation, max_length).tolist() for counts in (counts_B, rl_counts_B, opd_counts_B)
    )

    rows = _rows(samples, flat, micro_batch_tokens, share_prefixes)
    batches = _fill(rows, micro_batch_tokens)
    made = [_micro_batch(batch, samples, flat, weights, rl_weights, opd_weights) for batch in batches]
    return made + [made[-1].blank()] * (-len(made) % world) if made else []


@dataclass(frozen=True)
class _Flat:
    """The trained tokens of one sample, one entry each."""

    position: list[int]
    behaviour: list[float | None]  # None: no RL term
    missing: list[bool]  # which would have one, had the engine told its log-prob
    advantage: list[float]
    span: list[int]
    hinted: list[bool]


def _flatten(scored: ScoredSample) -> _Flat:
    sample = scored.sample
    owner = {t: index for index, span in enumerate(sample.spans) for t in range(span.start, span.end)}
    position = [t for t, kept in enumerate(sample.mask) if kept]
    if position and position[0] == 0:
        raise UsageError(f"sample {sample.id}: its first token has no context to be predicted from; mask it")
    if stray := [t for t in position if t not in owner]:
        raise UsageError(f"sample {sample.id}: token {stray[0]} is trained on but belongs to no span")
    span = [owner[t] for t in position]
    credited = [scored.advantages[index] is not None for index in span]
    return _Flat(
        position=position,
        behaviour=[sample.logprobs[t] if has else None for t, has in zip(position, credited, strict=True)],
        missing=[has and sample.logprobs[t] is None for t, has in zip(position, credited, strict=True)],
        advantage=[scored.advantages[index] or 0.0 for index in span],
        span=span,
        hinted=[bool(scored.hinted and scored.hinted[index]) for index in span],
    )


def _rows(samples: Sequence[ScoredSample], flat: Sequence[_Flat], budget: int, share: bool) -> list[Row]:
    """One row per sample, or one for several of a group where that is cheaper."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, scored in enumerate(samples):
        if flat[index].position:
            groups[scored.sample.group_id if share else str(index)].append(index)
    rows = []
    for members in groups.values():
        prefix = min(flat[index].position[0] for index in members)  # its last token predicts the first trained one
        for a, b in pairwise(members):
            prefix = _common_prefix(samples[a].sample.ids, samples[b].sample.ids, prefix)
        rows += _pack(members, prefix, [len(scored.sample.ids) for scored in samples], budget)
    return rows


def _common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    return next((t for t in range(limit) if a[t] != b[t]), limit)


def _pack(members: Sequence[int], prefix: int, lengths: Sequence[int], budget: int) -> list[Row]:
    """Rows of members in order, each as full as allowed; single rows where sharing saves nothing."""
    single = [Row((index,), 0, lengths[index]) for index in members]
    packs: list[Row] = []
    for index in members:
        rest = lengths[index] - prefix
        if packs and packs[-1].length + rest <= min(budget, MAX_SHARED_ROW):
            packs[-1] = Row((*packs[-1].samples, index), prefix, packs[-1].length + rest)
        else:
            packs.append(Row((index,), prefix, lengths[index]))
    return packs if _cost(packs) < _cost(single) else single


def _cost(rows: Sequence[Row]) -> float:
    return sum(row.length * (1.0 + row.length / ATTENTION_LENGTH) for row in rows)


def _fill(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Rows by falling length, cut where one more padded row would exceed the budget."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: -row.length):
        if batches and batches[-1][0].length * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _micro_batch(
    rows: Sequence[Row],
    samples: Sequence[ScoredSample],
    flat: Sequence[_Flat],
    weights: Sequence[float],
    rl_weights: Sequence[float],
    opd_weights: Sequence[float],
) -> MicroBatch:
    width = rows[0].length
    ids, position, branch = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    columns: dict[str, list[float]] = defaultdict(list)
    spans: list[tuple[int, int]] = []
    for r, row in enumerate(rows):
        end = row.prefix
        ids[r, :end] = torch.tensor(samples[row.samples[0]].sample.ids[:end])
        position[r, :end] = torch.arange(end)
        for b, index in enumerate(row.samples):
            sample, tokens = samples[index].sample, flat[index]
            shift, begin = end - row.prefix, end
            end += len(sample.ids) - row.prefix
            ids[r, begin:end] = torch.tensor(sample.ids[row.prefix :])
            position[r, begin:end] = torch.arange(row.prefix, len(sample.ids))
            branch[r, begin:end] = b + 1
            sources = [t - 1 if t - 1 < row.prefix else t - 1 + shift for t in tokens.position]
            columns["source"] += [r * width + source for source in sources]
            columns["target"] += [sample.ids[t] for t in tokens.position]
            columns["sample"] += [index] * len(sources)
            columns["temperature"] += [sample.temperature or 1.0] * len(sources)  # greedy ones are scored at 1
            columns["advantage"] += tokens.advantage
            columns["behaviour"] += [float("nan") if value is None else value for value in tokens.behaviour]
            columns["rl_weight"] += [rl_weights[index]] * len(sources)
            columns["weight"] += [weights[index]] * len(sources)
            columns["missing"] += tokens.missing
            columns["opd_weight"] += [opd_weights[index] * has for has in tokens.hinted]
            columns["span"] += [len(spans) + span for span in tokens.span]
            spans += [(index, span) for span in range(len(sample.spans))]
        branch[r, end:] = -1
    floats = {name: torch.tensor(columns[name], dtype=torch.float32) for name in FLOATS}
    longs = {name: torch.tensor(columns[name], dtype=torch.long) for name in ("source", "target", "sample", "span")}
    return MicroBatch(
        ids_BT=ids,
        position_BT=position,
        branch_BT=branch if any(len(row.samples) > 1 for row in rows) else None,
        source_N=longs["source"],
        target_N=longs["target"],
        temperature_N=floats["temperature"],
        sample_N=longs["sample"],
        spans=tuple(spans),
        tokens=TokenBatch(
            target_N=longs["target"],
            advantages_N=floats["advantage"],
            behaviour_N=floats["behaviour"],
            rl_mask_N=~floats["behaviour"].isnan(),
            missing_N=torch.tensor(columns["missing"], dtype=torch.bool),
            rl_weight_N=floats["rl_weight"],
            weight_N=floats["weight"],
            opd_weight_N=floats["opd_weight"],
            span_N=longs["span"],
        ),
    )


FLOATS = ("temperature", "advantage", "behaviour", "rl_weight", "weight", "opd_weight")
