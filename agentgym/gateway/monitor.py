"""Numbers for Prometheus, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agentgym.gateway.asking import Answer, Ask
from agentgym.gateway.records import State
from agentgym.gateway.service import Gateway

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Monitor:
    """Counts what one gateway does; `page` is the answer to GET /metrics."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "agentgym_requests", "Requests, by route and status", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "agentgym_request_seconds", "Time of requests", ["route"], registry=registry, buckets=SECONDS
        )
        self.first = Histogram(
            "agentgym_first_token_seconds", "Time to the first token", registry=registry, buckets=SECONDS
        )
        self.in_flight = Gauge("agentgym_requests_in_flight", "Requests being answered", registry=registry)
        self.answers = Counter("agentgym_answers", "Answers, by how they ended", ["state"], registry=registry)
        self.turns = Counter("agentgym_turns", "How requests were taken", ["kind", "relation"], registry=registry)
        self.tokens = Counter("agentgym_tokens", "Tokens served", ["kind"], registry=registry)
        self.version = Gauge("agentgym_weight_version", "The weights that answer requests begun now", registry=registry)
        self.sessions = Gauge("agentgym_sessions_known", "Sessions known by heart", registry=registry)
        self.unrecorded = Gauge("agentgym_unrecorded", "Writes that the disk refused", registry=registry)
        self.fates = Gauge("agentgym_turns_by_fate", "Turns in the store, by fate", ["fate"], registry=registry)
        gateway.observers.append(self.answered)

    def answered(self, ask: Ask, answer: Answer, state: State) -> None:
        """An answer ended."""
        self.answers.labels(state).inc()
        if not answer.choice:
            self.turns.labels(ask.taken.kind, ask.taken.relation).inc()
            self.tokens.labels("prompt").inc(len(ask.prompt_ids))
        self.tokens.labels("completion").inc(len(answer.ids))
        if answer.first_s is not None:
            self.first.observe(answer.first_s)

    async def page(self) -> bytes:
        """All numbers, as Prometheus reads them."""
        self.version.set(self.gateway.policy.version)
        self.sessions.set(len(self.gateway.readers))
        self.unrecorded.set(self.gateway.unrecorded)
        self.fates.clear()
        for fate, number in (await self.gateway.stored(self.gateway.ledger.fates)).items():
            self.fates.labels(fate).set(number)
        return generate_latest(self.registry)
