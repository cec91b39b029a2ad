"""Messages to token ids and back, by the model's own Jinja chat template.

Token in, token out: what was sampled is never tokenised again. A session's ids grow by the tokens of the messages that
came since; only where the template writes the history otherwise than before (thinking stripped, messages edited) is
the conversation rendered afresh, and `session.broken` counts it. Imports no torch: episodes render beside their
environments.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from agentgym.errors import UsageError
from agentgym.policies.formats import THINK, arguments_of, detect, make_format
from agentgym.policy import Session
from agentgym.types import Completion, Message, Prompt, ToolCall, ToolSpec

TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")  # that templates may ask for
MARK = "\ufdd0"  # a code point that Unicode keeps out of all text


class ChatTemplate:
    """The chat template and tokenizer of the Hugging Face folder `model`; `chat_template`: a Jinja file in its place.

    `tool_format` names how calls are written (see `formats`); `auto` is what the chat template has the model write. A
    template that prints no tools (SmolLM2's), or has another format, gets them in the system message.

    Raises:
        UsageError: no chat template, no tokenizer, or no such format.
    """

    def __init__(self, model: Path, chat_template: str = "", tool_format: str = "auto") -> None:
        self.model = model
        self._config = _read_json(model / "tokenizer_config.json")
        self._template = _template_text(model, self._config, chat_template)
        self._tokens: dict[str, Any] = {name: _token(self._config.get(name)) for name in TOKEN_NAMES}
        self.tokenizer = _tokenizer(model)
        added = self.tokenizer.get_added_tokens_decoder()
        special = {id: token.content for id, token in added.items() if token.special}
        specials = sorted(special.values(), key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, specials)) or r"(?!)")
        self.special_ids = frozenset(special)
        self.turn_end = self._turn_end()
        self._turn_end_text = self.tokenizer.id_to_token(self.turn_end) or ""
        self.stop_ids = tuple(sorted({self.turn_end, *self._eos_ids()}))
        asked = [Message(role="user", content="x")]
        printed = "a_tool" in self._render_text(asked, (ToolSpec(name="a_tool"),), False)
        native = detect(self._template, printed)
        self.tool_format = make_format(native if tool_format == "auto" else tool_format)
        self.prints_tools = printed and self.tool_format.name == native
        self._dropped = {id for id, text in special.items() if text not in self.tool_format.marks}
        self._opens_thinking = self._render_text(asked, (), True).rstrip().endswith(THINK)

    def encode_prompt(self, session: Session, prompt: Prompt) -> tuple[int, ...]:
        """The ids to serve: `prompt.ids`, or the session's extended by the tokens of the new messages."""
        if prompt.ids is not None:
            return prompt.ids
        text = self.render(prompt.messages, prompt.tools)
        if not session.ids:
            return self.encode(text)
        follows = self._follows(session, prompt, text)
        if follows is None:
            session.broken += 1
            return self.encode(text)
        end = () if session.ids[-1] == self.turn_end else (self.turn_end,)  # cut off by length or by a stop string
        return session.ids + end + self.encode(follows)

    def encode_response(self, message: Message) -> tuple[int, ...]:
        """The ids of `message` as the model should have written it, end of turn included: what a warm start trains on."""
        asked = Message(role="user", content="x")
        before, text = self.render([asked]), self.render([asked, message], add_generation_prompt=False)
        end = text.rfind(self._turn_end_text)
        if text.startswith(before) and end >= len(before):
            written = text[len(before) : end]
        else:  # a template that writes more before an answer than it keeps of it (thinking)
            written = self._guard(self._with_calls(message).content)
        return (*self.encode(written), self.turn_end)

    def decode_response(self, ids: tuple[int, ...], tools: tuple[ToolSpec, ...] = ()) -> Message:
        """What people and environments read: text without special tokens; tool calls parsed where there are tools.

        A malformed call stays text, and `call_errors` says what is wrong with it. Calls inside thinking do not count.
        """
        text = self.tokenizer.decode([id for id in ids if id not in self._dropped], skip_special_tokens=False)
        if not tools:
            return Message(role="assistant", content=text)
        parsed = self.tool_format.parse(text, tools, thinking=self._opens_thinking, key=repr(ids))
        return Message(role="assistant", content=parsed.content, tool_calls=parsed.calls, call_errors=parsed.errors)

    def advance(self, session: Session, prompt: Prompt, completion: Completion) -> None:
        """Extend `session` by what was served and sampled."""
        session.ids = completion.prompt_ids + completion.ids
        session.messages = () if prompt.ids is not None else _said((*prompt.messages, completion.message))
        session.n_messages = len(session.messages)
        session.tools = prompt.tools

    def render(self, messages: Any, tools: tuple[ToolSpec, ...] = (), *, add_generation_prompt: bool = True) -> str:
        """The conversation as text, in which special tokens written by anybody but the template are marked."""
        if tools and not self.prints_tools:
            messages, tools = _with_preamble(messages, self.tool_format.render_tools(tools)), ()
        if not self.prints_tools:
            messages = [self._with_calls(message) for message in messages]
        return self._render_text(messages, tools, add_generation_prompt)

    def stretches(self, text: str) -> list[str]:
        """What `render` made, cut around its special tokens: plain, special, plain, ..., plain."""
        cuts = [place for found in self._specials.finditer(text) for place in found.span()]
        return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]

    def _with_calls(self, message: Message) -> Message:
        """The message with its tool calls written into its content."""
        if not message.tool_calls:
            return message
        return msgspec.structs.replace(message, content=self.tool_format.render(message), tool_calls=())

    def _follows(self, session: Session, prompt: Prompt, text: str) -> str | None:
        """What `text` says after the end of the session's last turn; None if it does not continue the session."""
        covered = session.n_messages
        if not covered or session.messages != _said(prompt.messages[:covered]) or session.tools != prompt.tools:
            return None
        before = self.render(prompt.messages[:covered], prompt.tools, add_generation_prompt=False)
        end = before.rfind(self._turn_end_text)
        if end < 0 or not text.startswith(before[: end + len(self._turn_end_text)]):
            return None
        return text[end + len(self._turn_end_text) :]

    def _render_text(self, messages: Any, tools: tuple[ToolSpec, ...], add_generation_prompt: bool) -> str:
        try:
            rendered: Any = render_jinja_template(
                [[_escape(_to_dict(message), self._guard) for message in messages]],
                tools=[_escape(tool.to_openai(), self._guard) for tool in tools] or None,
                chat_template=self._template,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except TemplateError as error:
            raise UsageError(f"the chat template of {self.model} refuses the conversation: {error}") from error
        return rendered[0][0]

    def _guard(self, text: str) -> str:
        """Put a mark into each special token that somebody wrote into a message: who types <|im_end|> ends no turn."""
        return self._specials.sub(lambda found: found[0][0] + MARK + found[0][1:], text.replace(MARK, ""))

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of what `render` made; marked special tokens stay text."""
        if MARK not in text:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        start = 0
        for found in [*self._specials.finditer(text), None]:
            plain = text[start : found.start() if found else None].replace(MARK, "")
            ids += self._plain_tokenizer.encode(plain, add_special_tokens=False).ids if plain else []
            if found:
                ids.append(self._special_id(found[0]))
                start = found.end()
        return tuple(ids)

    @cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        """The tokenizer, for which special tokens are text like any other."""
        tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        return tokenizer

    def _special_id(self, text: str) -> int:
        id = self.tokenizer.token_to_id(text)
        assert id is not None
        return id

    def _turn_end(self) -> int:
        """The special token that the template writes after an answer; the end of text where it writes none."""
        messages = [Message(role="user", content="x"), Message(role="assistant", content="AN-ANSWER")]
        after = self._render_text(messages, (), False).rpartition("AN-ANSWER")[2]
        if found := self._specials.search(after):
            return self._special_id(found[0])
        if not (eos := self._eos_ids()):
            raise UsageError(
                f"model {self.model} has no token that ends a turn: set eos_token in tokenizer_config.json"
            )
        return eos[0]

    def _eos_ids(self) -> list[int]:
        for name in ("generation_config.json", "config.json"):
            if (eos := _read_json(self.model / name).get("eos_token_id")) is not None:
                return eos if isinstance(eos, list) else [eos]
        eos = self.tokenizer.token_to_id(_token(self._config.get("eos_token")))
        return [] if eos is None else [eos]


def _to_dict(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json_or_text(call)}}
            for call in message.tool_calls
        ]  # fmt: skip
    for key in ("tool_call_id", "name"):
        if value := getattr(message, key):
            made[key] = value
    return made


def _said(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages as far as a model reads them: who brings a conversation back knows no more."""
    return tuple(
        msgspec.structs.replace(message, call_errors=()) if message.call_errors else message for message in messages
    )


def _json_or_text(call: ToolCall) -> Any:
    """Templates print arguments with `tojson`: an object is wanted, and text is all there is if it is malformed."""
    arguments = arguments_of(call)
    return call.arguments if arguments is None else arguments


def _with_preamble(messages: Any, preamble: str) -> list[Message]:
    """The messages with the tools listed at the end of the system message."""
    if messages and messages[0].role == "system":
        system = msgspec.structs.replace(messages[0], content=f"{messages[0].content}\n\n{preamble}")
        return [system, *messages[1:]]
    return [Message(role="system", content=preamble), *messages]


def _escape(value: Any, mark: Any) -> Any:
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, dict):
        return {mark(key): _escape(item, mark) for key, item in value.items()}
    return [_escape(item, mark) for item in value] if isinstance(value, list | tuple) else value


def _token(token: Any) -> str:
    """A special token of tokenizer_config.json: text, or a dict that holds it."""
    return token["content"] if isinstance(token, dict) else token or ""


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _tokenizer(model: Path) -> Tokenizer:
    if (model / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(model / "tokenizer.json"))
    from transformers import AutoTokenizer  # converts what older models have; imports torch

    try:
        return AutoTokenizer.from_pretrained(model).backend_tokenizer
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"model {model} has no tokenizer that can be read: {reason}") from error


def _template_text(model: Path, config: dict[str, Any], chat_template: str) -> str:
    if chat_template:
        try:
            return Path(chat_template).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"model.chat_template={chat_template}: {error.strerror}") from error
    if (model / "chat_template.jinja").is_file():
        return (model / "chat_template.jinja").read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {item["name"]: item["template"] for item in template}.get("default")
    if not template:
        raise UsageError(f"model {model} has no chat template: set model.chat_template to a Jinja file")
    return template
