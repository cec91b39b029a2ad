import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from agentgym.charts import NARROW, Point, Series, _ticks, interval_chart, line_chart, whole_width
from agentgym.config import Config, to_yaml
from agentgym.metrics import MetricsWriter
from agentgym.report import few_samples, sample_size, verdict, write_report
from agentgym.types import Completion, Message, ToolCall, Trajectory, Turn

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


def test_an_interval_over_steps_is_a_band_between_its_ends():
    points = [Point(0, 0.5, 0.25, 0.75), Point(1, 0.5), Point(2, 1.0, 0.5, 1.0)]
    chart = line_chart("t", [Series(name="a", points=points, band=True)], width=320, height=170)
    (corners,) = re.findall(r'class="s1 band" points="([^"]*)"', chart)
    assert len(corners.split()) == 4, "the step without an interval has no corner"
    xs = [float(corner.split(",")[0]) for corner in corners.split()]
    assert xs[0] == xs[3] < xs[1] == xs[2]
    assert chart.count("<polyline") == 1 and "whisker" not in chart
    assert "band" not in line_chart("t", [Series(name="a", points=points)])


def test_a_judged_run_shows_its_signals_and_what_was_left_out(run_folder):
    assert "Judge and hints" not in write_report(run_folder).read_text()
    with MetricsWriter(run_folder) as metrics:
        for step, refused in ((5, 2), (6, 3)):
            metrics.write(
                step, turns_judged=8.0, scored_share=0.75, hinted_share=0.25, vote_entropy=0.3, judge_agreement=0.9,
                hint_acceptance=0.5, **{"turns/hint_only": 2.0, "hints_refused/too_short": refused, "unscored/no_valid_vote": 1},
            )  # fmt: skip
    page = write_report(run_folder).read_text()
    for words in ("Judge and hints", "Judge against verifier", "What was left out", "hints refused", "too short"):
        assert words in page
    assert "<td>too short</td><td>5</td>" in page


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


def test_the_headline_has_the_p_value_beside_the_interval():
    assert "+36.5 points by RL (95% interval +25.0 to +48.0, p = 1e-05)" in verdict(RESULT)


def test_a_step_that_trained_on_few_samples_is_told_of():
    good = {"step": 1, "samples": 100, "samples_rejected": 92, "rejected/group_without_spread": 92}
    bad = {"step": 2, "samples": 8, "samples_rejected": 184, "rejected/group_without_spread": 184}
    assert few_samples([good]) == few_samples([{"step": 1}]) == []
    (said,) = few_samples([good, bad])
    assert said.startswith("Step 2 trained on 8 samples; 184 of 192 samples had no spread: ")
    assert few_samples([bad, good, bad | {"step": 3, "samples": 0}])[0].endswith(
        "2 of 3 steps trained on less than 25% of theirs."
    )
    assert few_samples([good | {"samples": 0, "samples_rejected": 0}]) == []


def test_one_turn_is_one_turn(run_folder):
    said = Completion(
        prompt_ids=(), ids=(), logprobs=(), versions=(), finish_reason="stop", message=Message(role="assistant")
    )
    trajectory = msgspec.structs.replace(episode("x"), turns=(Turn(index=0, completion=said),))
    page = write_report(run_folder, {"after RL": [trajectory, episode("y")]}).read_text()
    assert ", 1 turn<" in page and ", 0 turns<" in page


@pytest.mark.parametrize("value", [0.00012, 123456.0, 1e-9, -0.00025, 0.5])
def test_labels_of_the_axis_have_room(value):
    chart = line_chart("x", [Series(name="a", points=[Point(0, 0.0), Point(1, value)])], width=NARROW)
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<s]+)</text>', chart)
    assert len(labels) >= 3
    assert all(float(right) - 7.3 * len(words) >= 0 for right, words in labels)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5, 0.51, 1.0])
def test_names_in_a_narrow_chart_lie_inside_it(rate):
    chart = interval_chart("x", [("base model", rate, None)], width=NARROW)
    (x, anchor, words) = re.findall(r'class="name" x="([\d.]+)" y="[\d.]+" text-anchor="(\w+)">([^<]+)<', chart)[0]
    room = float(x) if anchor == "end" else NARROW - float(x)
    assert room >= 8.5 * len(words)


def test_wide_charts_are_drawn_for_both_sizes_of_screen(run_folder):
    page = write_report(run_folder).read_text()
    assert page.count('viewBox="0 0 900 ') == page.count(f'viewBox="0 0 {NARROW} ') == 2
    assert whole_width(lambda width: "") == ""


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


def test_shares_are_not_rounded_to_another_value():
    chart = line_chart("x", [Series(name="a", points=[Point(0, 0.0), Point(1, 0.1)])], percent=True)
    assert ">2.5%<" in chart and ">10%<" in chart


def test_shares_have_no_tick_above_one():
    assert _ticks(0, 0.95, most=1.0)[-1] == 1.0
