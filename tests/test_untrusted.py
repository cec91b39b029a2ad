"""What others wrote, made safe to show."""

import sys
import time
import unicodedata

import pytest

from agentgym.untrusted import HIDDEN, defused, head_and_tail, stripped, visible


def test_all_that_no_reader_sees_counts_as_hidden():
    blind = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    missed = [
        hex(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in blind and chr(code) not in "\n\t" and not HIDDEN.match(chr(code))
    ]
    assert missed == []


def test_what_people_write_is_not_hidden():
    for text in (
        "naïve café",
        "日本語のテキスト",
        "Привет, мир",
        "سلام دنیا",
        "नमस्ते",
        "한국어",
        "a\tb\nc",
        "x² ≤ ½ → ∑",
        "😀",
    ):
        assert not HIDDEN.search(text)
        assert visible(text) == stripped(text) == text


@pytest.mark.parametrize(
    ("text", "seen", "without"),
    [
        ("a\u200bb", "a\\u{200b}b", "ab"),
        ("a\r\nb\rc\x0bd\x0ce\x85f\u2028g\u2029h", "a\nb\nc\nd\ne\nf\ng\nh", "a\nb\nc\nd\ne\nf\ng\nh"),
        ("a\x1b[2Jb\x00", "a\\u{1b}[2Jb\\u{0}", "a[2Jb"),
        ("\u202etxt\ud800", "\\u{202e}txt\\u{d800}", "txt"),
        ("".join(chr(0xE0000 + ord(char)) for char in "score"), "\\u{e0073}\\u{e0063}\\u{e006f}\\u{e0072}(and 1 more)", ""),
    ],
)  # fmt: skip
def test_what_is_hidden_is_written_out_or_left_out(text, seen, without):
    assert (visible(text), stripped(text)) == (seen, without)


@pytest.mark.parametrize(
    "mark",
    ["<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|endoftext|>", "<s>", "</s>", "<bos>", "<start_of_turn>", "<end_of_turn>",
     "[INST]", "[/INST]", "<<SYS>>", "[TOOL_CALLS]", "<think>", "</think>", "<tool_call>", "<｜end▁of▁sentence｜>", "<repo_name>",
     "<extra_id_0>", "<unused7>", "<pad>", "<|IM_END|>", "<fim_prefix>"],
)  # fmt: skip
def test_special_tokens_become_text(mark):
    assert mark not in defused(f"a{mark}b{mark}")
    assert defused(f"a{mark}").replace(" ", "") == f"a{mark}"
    assert mark not in defused(stripped(f"{mark[0]}\u200b{mark[1:]}"))


def test_ordinary_text_stays_as_it_is():
    for text in (
        "if a < b and c[0] > d:",
        "<div class='x'>",
        "x[i]",
        "echo a > b | sort",
        "[ -f x ] && y",
        "List<String>",
    ):
        assert defused(text) == text


def test_head_and_tail_keep_the_ends():
    assert head_and_tail("abcdef", 6) == ("abcdef", 0, "")
    assert head_and_tail("abcdefghij", 5) == ("abc", 5, "ij")
    assert head_and_tail("abc", 1) == ("a", 2, "")


def test_hostile_text_takes_linear_time():
    began = time.process_time()
    for text in ("<" * 10**6, "\u200b" * 10**6, "[a_" * 10**6, "<a_a_" * 10**6, "<" + " " * 10**6, "< " * 10**6):
        defused(text), visible(text), stripped(text)
    assert time.process_time() - began < 20
