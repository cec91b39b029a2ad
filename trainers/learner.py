"""The learner: one rank of the DeepSpeed engine, and what is done with it."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentgym.config import Config
from agentgym.errors import LearnerError, UsageError
from agentgym.trainers.batch import MicroBatch, plan, split_updates, unscored
from agentgym.trainers.head import TokenScorer
from agentgym.trainers.loss import LossSettings, policy_loss
from agentgym.trainers.sft import Progress, cross_entropy, supervised
from agentgym.trainers.teacher import Distiller
from agentgym.trainers.totals import Totals
from agentgym.trainers.weights import other_files, write_folder
from agentgym.types import Sample, ScoredSample

TAG = "state"
BUCKET = 50_000_000  # elements communicated at once
LossOf = Callable[[MicroBatch, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


class Learner:
    """Trains one model; all ranks make the same calls with the same arguments.

    `torch.distributed` must have been initialised. fp32 weights and AdamW moments; with `trainer.precision: bf16`
    forward and backward run under autocast. The optimiser is fresh after `sft`, so that RL does not begin with the
    momentum of the demonstrations.
    """

    def __init__(self, config: Config, model: Path) -> None:
        self.config, self.others = config, other_files(model)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(get_accelerator().current_device_name())
        self.updates = 0  # optimiser steps of RL, which the warm-up of the learning rate counts
        torch.manual_seed(config.seed)
        scorer = self._scorer(model)
        self.model_config = scorer.model.config
        self.settings = LossSettings.of(config, vocabulary=self.model_config.vocab_size)
        if config.algorithm.w_opd and config.algorithm.opd_k > self.settings.vocabulary:
            raise UsageError(
                f"algorithm.opd_k={config.algorithm.opd_k}: the model has {self.settings.vocabulary} tokens"
            )
        self.share_prefixes = not _windowed(self.model_config)
        frozen_teacher = config.algorithm.w_opd > 0 and config.teacher.kind == "reference"
        with_reference = self.settings.kl_coef > 0 or frozen_teacher
        self.reference = self._scorer(model).eval().requires_grad_(False) if with_reference else None
        if config.trainer.gradient_checkpointing:
            scorer.model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.AdamW(
            scorer.parameters(), lr=config.trainer.learning_rate, weight_decay=config.trainer.weight_decay, fused=True
        )
        self.engine, *_ = deepspeed.initialize(model=scorer, optimizer=optimizer, config=engine_config(config))
        self.distiller = Distiller(
            config,
            student=self._seen,
            teacher=self.reference if frozen_teacher and self.reference is not None else self._seen,
            longest=self._longest if self.world > 1 else None,
        )

    # What the training loop calls

    def step(self, samples: Sequence[ScoredSample]) -> dict[str, float]:
        """Learn from one batch: `trainer.updates_per_batch` optimiser steps, each on its part of the batch.

        Args:
            samples: the whole batch, on every rank.

        Returns:
            Metrics: means per trained token, maxima, and counts, over all ranks.

        Raises:
            LearnerError: loss or gradient is not finite; the weights are as before that optimiser step.
            UsageError: a sample cannot be trained on (see `plan`).
        """
        began = time.monotonic()
        samples = self.distiller.admitted(samples) if self.settings.w_opd else samples
        parts = split_updates(samples, self.config.trainer.updates_per_batch)
        planned = [(self._plan(part, self.settings.aggregation), part) for part in parts]
        planned = [(batches, part) for batches, part in planned if batches]
        ready = [self._prepared(batches, part, with_old=len(planned) > 1) for batches, part in planned]
        totals, norm = Totals(), 0.0
        for batches in ready:
            warm = min(1.0, (self.updates + 1) / max(1, self.config.trainer.warmup_steps))
            norm = self._update(batches, self._policy_loss, self.config.trainer.learning_rate * warm, totals)
            self.updates += 1
        metrics = totals.metrics(self.device, updates=len(ready)) | self.distiller.take_counts()
        tokens = sum(len(scored.sample.ids) for scored in samples)
        return {
            **metrics,
            "kl": metrics.get("kl_reference", metrics.get("kl_behaviour", 0.0)),
            "grad_norm": norm,
            "learning_rate": self.engine.optimizer.param_groups[0]["lr"],
            "updates": float(len(ready)),
            "tokens": float(tokens),
            "tokens_per_second": tokens / (time.monotonic() - began),
        }

    def sft(
        self,
        samples: Sequence[Sample],
        batch_size: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        progress: Progress = lambda done, total: None,
    ) -> dict[str, float]:
        """Learn demonstrations by heart (the config's `warm_start` by default), then begin RL with a fresh optimiser.

        The reference model of the KL term becomes the result.

        Raises:
            LearnerError: loss or gradient is not finite.
        """
        warm = self.config.warm_start
        rate = learning_rate or warm.learning_rate

        def update(batch: Sequence[ScoredSample]) -> float:
            totals = Totals()
            self._update(self._plan(batch, "token_mean"), _cross_entropy, rate, totals)
            return totals.metrics(self.device, updates=1)["loss"]

        self._reset_optimizer()
        metrics = supervised(
            samples,
            update,
            batch_size=batch_size or warm.batch_size,
            epochs=epochs or warm.epochs,
            seed=self.config.seed,
            progress=progress,
        )
        self._reset_optimizer()
        if self.reference is not None:
            _copy(self._weights(), self.reference)
        return metrics

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float | None]]:
        """The log-prob of each token where a sample's mask is 1, at its temperature; None elsewhere (length T)."""
        mine: list[tuple[list[int], list[float]]] = []
        for batch in self._plan([unscored(sample) for sample in samples], "token_mean"):
            kept = batch.tokens.weight_N > 0  # not those of a micro-batch that only keeps ranks in step
            logprob_N = self._detached(batch)[kept]
            mine.append((batch.sample_N[kept].tolist(), logprob_N.tolist()))
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, mine)
        values: dict[int, list[float]] = defaultdict(list)
        for owners, found in (part for rank in everyone for part in rank):
            for owner, value in zip(owners, found, strict=True):
                values[owner].append(value)
        streams = [iter(values[index]) for index in range(len(samples))]
        return [
            [next(stream) if kept else None for kept in sample.mask]
            for sample, stream in zip(samples, streams, strict=True)
        ]

    def publish(self, directory: Path) -> None:
        """Write the weights as a Hugging Face folder, in the serving type, for an engine to load."""
        weights = self._weights()
        if self.rank == 0:
            named = {name.removeprefix("model."): weight for name, weight in weights.items()}
            write_folder(directory, named, self.model_config, self.others, getattr(torch, self.config.engine.dtype))
        dist.barrier()

    def save(self, directory: Path) -> None:
        """Write what an exact resume needs: weights, moments, counters, random state, reference."""
        state = {"updates": self.updates, "rng": torch.get_rng_state()}
        self.engine.save_checkpoint(str(directory), tag=TAG, client_state=state, save_latest=False)
        if self.rank == 0:
            (directory / "layout.json").write_text(json.dumps(self._layout()))
            if self.reference is not None:
                save_file(dict(self.reference.named_parameters()), directory / "reference.safetensors")
        dist.barrier()

    def load(self, directory: Path) -> None:
        """Go on exactly where `save` was called.

        Raises:
            UsageError: there is no such state, or it was saved with another number of ranks or ZeRO stage.
        """
        if not (directory / "layout.json").is_file():
            raise UsageError(f"no trainer state in {directory}: resume from another checkpoint")
        saved = json.loads((directory / "layout.json").read_text())
        for key, value in self._layout().items():
            if saved.get(key) != value:
                raise UsageError(f"{key}={value}, but the checkpoint was made with {saved.get(key)}: resume with that")
        try:
            path, state = self.engine.load_checkpoint(str(directory), tag=TAG)
        except Exception as error:  # torch, pickle and DeepSpeed each have their own for a damaged file
            path, why = None, f" ({type(error).__name__}: {error})"
        else:
            why = ""
        if path is None:
            raise LearnerError(
                f"the trainer state in {directory} cannot be read{why}: delete that checkpoint's folder to go on from the "
                "one before"
            )
        self.updates = state["updates"]
        torch.set_rng_state(state["rng"])
        if self.reference is not None and (directory / "reference.safetensors").is_file():
            _copy(load_file(directory / "reference.safetensors"), self.reference)

    # How it is done

    def _scorer(self, model: Path) -> TokenScorer:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        for module in loaded.modules():  # with dropout the ratio of new to old would be noise
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            elif hasattr(module, "attention_dropout"):
                setattr(module, "attention_dropout", 0.0)  # noqa: B010 (a plain attribute that Module's type hides)
        return TokenScorer(loaded, bf16=self.config.trainer.precision == "bf16").to(self.device)

    def _plan(self, samples: Sequence[ScoredSample], aggregation: str) -> list[MicroBatch]:
        """This rank's micro-batches of a batch."""
        batches = plan(
            samples,
            micro_batch_tokens=self.config.trainer.micro_batch_tokens,
            world=self.world,
            aggregation=aggregation,
            max_length=self.settings.max_length,
            share_prefixes=self.share_prefixes,
        )
        return [batch.to(self.device) for batch in batches[self.rank :: self.world]]

    def _prepared(
        self, batches: Sequence[MicroBatch], samples: Sequence[ScoredSample], *, with_old: bool
    ) -> list[MicroBatch]:
        """With what must be known before the first update: log-probs, and what the teacher thinks.

        A single update needs no `old`: it is the result of the forward pass that learns, without its gradient.
        """
        ready = list(batches)
        if self.settings.kl_coef and self.reference is not None:
            with torch.no_grad():
                ready = [replace(batch, reference_N=self.reference(*batch.inputs)[0]) for batch in ready]
        if self.settings.w_opd:
            ready = self.distiller.prepared(ready, samples, keep_old=with_old)
        if not with_old:
            return ready
        return [batch if batch.old_N is not None else replace(batch, old_N=self._detached(batch)) for batch in ready]

    def _detached(self, batch: MicroBatch) -> Tensor:
        """Log-probs under the weights as they are."""
        return self._seen(*batch.inputs)[0]

    def _seen(self, *inputs: Any) -> tuple[Tensor, ...]:
        """A forward pass under the weights as they are, without gradients."""
        self.engine.eval()
        with torch.no_grad():
            found: tuple[Tensor, ...] = self.engine(*inputs)
        self.engine.train()
        return found

    def _longest(self, n: int) -> int:
        """The largest `n` of all ranks."""
        highest = torch.tensor(n, device=self.device)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        return int(highest)

    def _policy_loss(self, batch: MicroBatch, logprobs: Tensor, entropy_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        current_N, opd_current_NK = (logprobs, None) if batch.opd is None else (logprobs[:, 0], logprobs[:, 1:])
        old_N = current_N.detach() if batch.old_N is None else batch.old_N
        return policy_loss(
            self.settings, batch.tokens, current_N, old_N, entropy_N, batch.reference_N, batch.opd, opd_current_NK
        )

    def _update(self, batches: Sequence[MicroBatch], loss_of: LossOf, learning_rate: float, totals: Totals) -> float:
        """One optimiser step on this rank's micro-batches of a batch; returns the norm of the gradient."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        for batch in batches:
            loss, sums = loss_of(batch, *self.engine(*batch.inputs))
            # DeepSpeed averages over ranks; the weights in the loss already count all of them
            self.engine.backward(loss * self.world, scale_wrt_gas=False)
            totals.add(batch, loss.detach(), sums)
        self.engine.step()
        if not self.engine.was_step_applied():
            raise LearnerError(
                f"the gradient is not finite (loss of the last micro-batch: {loss.item():.4g}), so no step was made: "
                "lower trainer.learning_rate, or set trainer.precision=fp32"
            )
        return float(self.engine.get_global_grad_norm())

    def _reset_optimizer(self) -> None:
        """Moments and step counts as in a new AdamW."""
        for state in self.engine.optimizer.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def _weights(self) -> dict[str, Tensor]:
        """All parameters in float32, each under its first name (a tied head has none of its own)."""
        parameters = dict(self.engine.module.named_parameters())
        if self.config.trainer.zero_stage < 3:
            return {name: parameter.detach() for name, parameter in parameters.items()}
        whole = {}
        for name, parameter in parameters.items():
            with deepspeed.zero.GatheredParameters([parameter]):
                whole[name] = parameter.detach().cpu().clone()
        return whole

    def _layout(self) -> dict[str, int]:
        return {"trainer.ranks": self.world, "trainer.zero_stage": max(1, self.config.trainer.zero_stage)}


def engine_config(config: Config) -> dict[str, Any]:
    """DeepSpeed's settings. Stage 0 runs as stage 1, which on one rank is the same and reports the gradient's norm."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.trainer.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": max(1, config.trainer.zero_stage),
            "overlap_comm": False,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
        },
    }


def _cross_entropy(batch: MicroBatch, logprob_N: Tensor, entropy_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return cross_entropy(batch, logprob_N), {}


def _copy(weights: dict[str, Tensor], model: TokenScorer) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)


def _windowed(config: Any) -> bool:
    """Whether a layer is more than full causal attention, which the mask of a shared prefix would undo."""
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    return layers != {"full_attention"} or bool(getattr(config, "sliding_window", None))
