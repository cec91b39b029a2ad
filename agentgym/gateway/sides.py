"""Main turn or side request: told by headers first, then by rules, then by the shape of the conversation.

A side request is one that a program makes beside the conversation: a title, a summary, a memory to write, a heartbeat,
a sub-agent's work. It is answered like any other and never trained on. A person who asks for a title or a summary in
the conversation itself is in a main turn: what a user writes counts as a side request only if nobody but a program
writes so, or if the request has another shape than its conversation (other system prompt, tools gone, history quoted).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.types import Message

SHORT = 4000  # characters; longer system prompts are of agents that do all sorts of things
QUOTED = 24  # characters of a message that is quoted in another
I = re.IGNORECASE | re.DOTALL  # noqa: E741

# What only programs write, wherever it stands at the beginning of the last user message.
PROGRAM = (
    ("title", r"^\W*(?:#+ *task:?\W+)?(?:please )?(?:generate|write|create|provide) (?:a|an) [^.\n]{0,60}?\b(?:title|headline|name)\b.{0,40}?\b(?:for|of|summari[sz]ing|based on|from) (?:this|the|our)(?: following| above)? (?:conversation|chat history|chat|session|thread|dialogue)\b"),
    ("title", r"^\W*generate a title for this conversation\b"),
    ("tags", r"^\W*(?:#+ *task:?\W+)?generate \d.{0,20}(?:broad )?tags\b"),
    ("suggestions", r"^\W*(?:#+ *task:?\W+)?suggest \d.{0,20}follow-up (?:questions|prompts)\b"),
    ("search", r"^\W*(?:#+ *task:?\W+)?analy[sz]e the chat history to determine (?:the necessity|whether)\b"),
    ("completion", r"^\W*(?:#+ *task:?\W+)you are an autocompletion system\b"),
    ("summary", r"^\W*your (?:urgent )?task is (?:now )?to (?:create|write|produce) (?:a|an) [\w, -]*summary of (?:the|this|our) conversation\b"),
    ("summary", r"\brunning out of context\b.{0,120}\bsummary\b"),
    ("summary", r"\bcontext (?:checkpoint )?compaction\b.{0,200}\b(?:summary|handoff)\b"),
    ("summary", r"^\W*(?:provide|write|create) a (?:detailed |comprehensive |concise )?(?:prompt|continuation summary|handoff summary) (?:for continuing|that will allow|for another)\b"),
    ("memory", r"\b(?:pre-compaction )?memory flush\b"),
    ("memory", r"^\W*(?:store|save|write) (?:any )?(?:durable|long-term|lasting) memories\b"),
    ("heartbeat", r"\bHEARTBEAT(?:_OK|\.md)\b"),
    ("heartbeat", r"^\W*\[?heart ?beat\]?\W*$"),
    ("topic", r"\b(?:isNewTopic|indicates? a new conversation topic)\b"),
    ("speaker", r"\bwho should logically speak next\b"),
    ("embedding", r"^\W*represent this (?:sentence|query|document|passage)\b.{0,80}(?:retriev|search|cluster|classif|:)"),
    ("probe", r"^\W*(?:quota|warm-?up)\W*$"),
)  # fmt: skip
# What the system prompt of a side request says that it is for.
PURPOSE = (
    ("title", r"\b(?:you are a (?:title|headline) generator|(?:generate|write|create|provide|come up with|produce)s? (?:a|an|the) (?:[\w-]+,? ){0,6}(?:title|headline|name) (?:for|of|that|summari[sz]ing|based on))"),
    ("summary", r"\b(?:tasked with summari[sz]ing (?:the )?conversations?|summari[sz]es? (?:internal )?(?:the |this )?(?:chat|conversation)(?: history| log)?|(?:conversation|context) (?:summari[sz]er|compactor)|context compression)\b"),
    ("memory", r"\b(?:personal information organizer|smart memory manager|memory (?:extraction|writer|manager|extractor)|extract(?:s|ing)? (?:\w+ ){0,3}(?:memories|facts|preferences) (?:from|about))\b"),
    ("heartbeat", r"\b(?:this is a heartbeat|heartbeat check)\b"),
    ("topic", r"\b(?:isNewTopic|indicates? a new conversation topic)\b"),
    ("commit", r"\bgenerates? (?:\w+,? ){0,3}(?:one-line )?git commit messages?\b"),
    ("suggestions", r"\bsuggests? (?:\w+ ){0,3}(?:follow-up|next) (?:questions|prompts|actions)\b"),
    ("diagnosis", r"\bdiagnostic agent\b.{0,120}\bloop|unproductive state\b"),
    ("subagent", r"\byou are (?:a|an|the) (?:[\w-]+ )?sub-?agent\b|\bspawned by (?:the|an?) (?:main|parent|orchestrat)"),
)  # fmt: skip
# What a person may ask for as well: a side request only if the shape says so too.
ASKED = (
    ("title", r"\b(?:title|headline|name)\b.{0,60}\b(?:conversation|chat|session|thread|dialogue|message|exchange|following|above)\b"),
    ("summary", r"\b(?:summari[sz]e|summary of|condense|compact|recap)\b"),
    ("memory", r"\b(?:memor(?:y|ies)|facts?|preferences|remember)\b.{0,80}\b(?:extract|save|store|write|update|list)|\b(?:extract|save|store|write|update|list)\b.{0,80}\b(?:memor(?:y|ies)|facts|preferences)\b"),
    ("tags", r"\b(?:tags|categor(?:y|ies|ize)|classify)\b"),
    ("suggestions", r"\b(?:follow-up|next) (?:questions|prompts|replies)\b"),
)  # fmt: skip
HEADER_KINDS = {"main": "main", "user": "main", "side": "side"}

_program = [(label, re.compile(pattern, I)) for label, pattern in PROGRAM]
_purpose = [(label, re.compile(pattern, I)) for label, pattern in PURPOSE]
_asked = [(label, re.compile(pattern, I)) for label, pattern in ASKED]
SCRIPT = re.compile(
    r"<(?:conversation|chat_history|transcript|messages|history)>|^[^\w\n]{0,8}(?:user|human|assistant)[ \t]{0,4}:",
    I | re.MULTILINE,
)


@dataclass(frozen=True)
class Around:
    """What is known beside the request itself."""

    header: str = ""  # X-Turn-Type
    parent_header: str = ""  # X-Parent-Session-Id
    max_tokens: int | None = None
    tools: bool = False
    parent_side: str | None = None  # the label of the side turn that it continues
    other_system: bool = False  # it continues a conversation under another system prompt
    tools_gone: bool = False  # it continues a conversation that had tools
    calls: Sequence[str] = ()  # long texts in the arguments of recent tool calls of this user
    recent: Sequence[str] = ()  # texts of recent main turns of this user


def side(messages: Sequence[Message], around: Around) -> tuple[str, str] | None:
    """The label of a side request and why it is one; None: a main turn."""
    if around.header:
        kind = around.header.strip().lower()
        if HEADER_KINDS.get(kind) == "main":
            return None
        return ("side" if kind in HEADER_KINDS else kind), "the header X-Turn-Type says so"
    if around.parent_header:
        return "subagent", "the header X-Parent-Session-Id names whose sub-agent asks"
    return _by_rule(messages, around) or _by_shape(messages, around)


def _by_rule(messages: Sequence[Message], around: Around) -> tuple[str, str] | None:
    system = "\n".join(message.content for message in messages if message.role == "system")
    said = _last_said(messages)
    if len(system) <= SHORT and not around.tools:
        for label, pattern in _purpose:
            if pattern.search(system):
                return label, "its system prompt says so"
    elif found := _purpose[-1][1].search(system[:SHORT]):
        return "subagent", f"its system prompt says '{found[0][:40]}'"
    for label, pattern in _program:
        if pattern.search(said[:SHORT]):
            return label, "asked for in words that programs use"
    return None


def _by_shape(messages: Sequence[Message], around: Around) -> tuple[str, str] | None:
    if around.parent_side is not None:
        return around.parent_side, "continues a side conversation"
    if around.max_tokens is not None and around.max_tokens <= 1:
        return "probe", "wants one token at most"
    said = _last_said(messages)
    first = next((message.content.strip() for message in messages if message.role == "user"), "")
    answered = any(message.role == "assistant" for message in messages)
    if len(first) >= QUOTED and any(first in text or (len(text) >= QUOTED and text in first) for text in around.calls):
        return "subagent", "its first message is an argument of a tool call that was just made"
    label = next((label for label, pattern in _asked if pattern.search(said[:SHORT])), None)
    system = "\n".join(message.content for message in messages if message.role == "system")
    if label is None and len(system) <= SHORT:
        label = next((label for label, pattern in _asked if pattern.search(system)), None)
    if label and answered and (around.other_system or around.tools_gone):
        return label, f"another {'system prompt' if around.other_system else 'set of tools'} than its conversation's"
    if not answered:
        quotes = sum(len(text) >= QUOTED and text in said and text != said.strip() for text in around.recent)
        if quotes >= 2:
            return label or "about", "quotes a conversation that is going on"
        if label and (quotes or SCRIPT.search(said[: 4 * SHORT])):
            return label, "is about a conversation that it quotes"
    return None


def _last_said(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "user"), "")
