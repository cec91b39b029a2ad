import json
import re
from html.parser import HTMLParser

import pytest

from agentgym.charts import Point, Series, _ticks, line_chart
from agentgym.config import Config, to_yaml
from agentgym.metrics import MetricsWriter
from agentgym.report import sample_size, verdict, write_report
from agentgym.types import Message, ToolCall, Trajectory

RESULT = {
    "name": "quickstart", "seed": 3, "model": "tiny", "steps": 4, "n_tasks": 96, "attempts": 1, "seconds": 1203.0,
    "success_base": 0.01, "success_before": 0.24, "success_after": 0.604,
    "total_difference": 0.594, "total_difference_interval": [0.49, 0.69], "total_p_value": 1e-5,
    "difference": 0.365, "difference_interval": [0.25, 0.48], "p_value": 1e-5,
    "families": {"create": {"base": 0.0, "before": 0.25, "after": 0.75}}, "stages": {"train": 900.0},
}  # fmt: skip
HOSTILE = "<script>alert(1)</script>\"'&</pre><img src=https://example.com/x onerror=alert(1)>"


class Tags(HTMLParser):
    """Collects tags and attributes and checks that they nest."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.attributes, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def episode(content, outcome=1.0):
    call = ToolCall(id="1", name="run", arguments=content)
    messages = (Message(role="user", content="do it"), Message(role="assistant", content=content, tool_calls=(call,)))
    return Trajectory(
        id="t", task_id=f"task {content}", group_id="g", env="terminal", seed=0, status="completed", outcome=outcome,
        reason=content, messages=messages,
    )  # fmt: skip


@pytest.fixture
def run_folder(tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml(Config()))
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    with MetricsWriter(tmp_path) as metrics:
        for step in range(1, 5):
            metrics.write(step, reward_mean=step / 5, kl=float("nan") if step == 2 else 0.01, truncated_share=0.0)
    return tmp_path


def test_the_page_says_what_the_run_showed(run_folder):
    page = write_report(run_folder).read_text()
    for words in ("quickstart, seed 3", "+36.5", "+25.0 to +48.0", "60.4%", "create", "Learning curve"):
        assert words in page
    assert "algorithm:" in page and "15 min 00 s" in page


def test_the_page_needs_nothing_from_outside(run_folder):
    tags = Tags(write_report(run_folder, {"after RL": [episode("ok")]}).read_text())
    assert tags.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(tags.seen)
    assert not {"src", "href", "srcset"} & {name for name, _ in tags.attributes}


def test_what_a_model_wrote_is_only_shown(run_folder):
    page = write_report(run_folder, {HOSTILE: [episode(HOSTILE)]}).read_text()
    tags = Tags(page)
    assert not {"script", "img"} & set(tags.seen)
    assert page.count("&lt;script&gt;alert(1)") == 5  # heading, summary, reason, content and tool call
    assert not [name for name, _ in tags.attributes if name.startswith("on")]


def test_a_long_message_is_cut_and_says_so(run_folder):
    page = write_report(run_folder, {"after RL": [episode("x" * 9000)]}).read_text()
    assert re.search(r"… \d+ characters more", page)


def test_hostile_names_in_the_result_are_escaped(run_folder):
    result = RESULT | {"name": HOSTILE, "model": HOSTILE, "families": {HOSTILE: {"after": 1.0}}}
    (run_folder / "result.json").write_text(json.dumps(result))
    assert "script" not in Tags(write_report(run_folder).read_text()).seen


@pytest.mark.parametrize("missing", ["config.yaml", "result.json", "metrics.jsonl"])
def test_whatever_is_missing_is_left_out(run_folder, missing):
    (run_folder / missing).unlink()
    assert Tags(write_report(run_folder).read_text()).open == []


def test_an_empty_run_folder_has_a_report(tmp_path):
    assert "not been evaluated to its end" in write_report(tmp_path).read_text()


@pytest.mark.parametrize("key", sorted(RESULT))
def test_each_key_of_the_result_may_be_missing(run_folder, key):
    (run_folder / "result.json").write_text(json.dumps({name: RESULT[name] for name in RESULT if name != key}))
    assert Tags(write_report(run_folder).read_text()).open == []


def test_a_difference_that_the_sample_does_not_show_is_called_that():
    assert "not a difference that this sample shows" not in verdict(RESULT)
    assert "not a difference that this sample shows" in verdict(RESULT | {"difference_interval": [-0.01, 0.1]})


def test_the_report_says_what_the_sample_could_have_shown():
    assert sample_size(RESULT) == (
        "96 held-out tasks, 1 attempt each: a true difference of 16 points would have been noticed four times in five."
    )


def test_a_missing_value_breaks_the_line():
    points = [Point(0, 1.0), Point(1, 2.0), Point(2, None), Point(3, 1.0), Point(4, 2.0)]
    assert line_chart("x", [Series(name="a", points=points)]).count("<polyline") == 2


def test_a_chart_without_values_is_no_chart():
    assert line_chart("x", [Series(name="a", points=[Point(0, None), Point(1, float("nan"))])]) == ""


@pytest.mark.parametrize("low, high", [(0, 1e-9), (0, 1), (-3.2, 7), (0, 12345), (0.0, 0.02), (0, 0.97)])
def test_ticks_hold_the_values_and_are_few(low, high):
    ticks = _ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high * (1 - 1e-9) and 3 <= len(ticks) <= 7


def test_shares_have_no_tick_above_one():
    assert _ticks(0, 0.95, most=1.0)[-1] == 1.0
