"""The text of a page: within its budget, and nothing in it is taken for what it is not."""

from agentgym.environments.gui_outcomes import Node
from agentgym.environments.gui_snapshot import clean, in_view, parse, render

TREE = """\
- generic [active] [ref=e1] [box=8,8,784,3139]:
  - heading "Hi" [level=1] [ref=e2] [box=8,8,784,38]
  - link "far" [ref=e7] [cursor=pointer] [box=8,3088,55,19]:
    - /url: /x
  - combobox "Col" [ref=e5] [box=221,68,51,19]:
    - option "Red" [selected] [box=0,0,0,0]
  - iframe [ref=e8] [box=60,300,304,154]:
    - button "In" [ref=f1e2] [box=8,10,28,21]
  - 'button "a: b" [ref=e9] [box=0,0,100,50]'
  - text: some text"""
VIEW = (800, 600)


def test_lines_boxes_and_frames():
    nodes = parse(TREE)
    assert [node.text for node in nodes] == [
        "- generic [active] [ref=e1]:",
        '- heading "Hi" [level=1] [ref=e2]',
        '- link "far" [ref=e7]',
        '- combobox "Col" [ref=e5]:',
        '- option "Red" [selected]',
        "- iframe [ref=e8]:",
        '- button "In" [ref=f1e2]',
        '- button "a: b" [ref=e9]',
        "- text: some text",
    ]
    assert nodes[6].box == (68, 310, 28, 21), "in the page, not in its frame"
    assert nodes[4].box is None and nodes[8].box is None


def test_all_is_shown_where_there_is_room():
    text = render(parse(TREE), 2000, VIEW)
    assert "far" in text and "box=" not in text and "url" not in text
    assert text.splitlines()[4] == '    - option "Red" [selected]'


def test_what_is_outside_the_view_goes_first():
    farther = "".join(f'\n  - link "far {n}" [ref=e{n}] [box=8,{2000 + n},9,9]' for n in range(10, 30))
    text = render(parse(TREE + farther), 400, VIEW)
    assert len(text) <= 400 and "far" not in text and "some text" in text
    assert "(21 lines outside the view are left out: scroll to see them)" in text


def test_the_budget_holds_whatever_the_page():
    for width in (10, 100, 5000):
        nodes = [Node(1, f"- text: {'y' * width}", None)] * 1000
        text = render(nodes, 900, VIEW)
        assert len(text) <= 900 and "(the rest of the page is left out)" in text
    assert max(map(len, render(parse(f"- text: {'z' * 100_000}"), 900, VIEW).splitlines())) <= 240


def test_points_are_thousandths_of_the_view():
    text = render(parse(TREE), 2000, VIEW, points=True)
    assert '- button "In" [ref=f1e2] @102,534' in text and "- combobox" in text
    assert "- generic [active] [ref=e1] @500,2629:" in text


def test_an_ancestor_of_something_visible_is_visible():
    nodes = [Node(0, "- a:", (0, 900, 10, 10)), Node(1, "- b", (0, 0, 10, 10)), Node(1, "- c", (0, 900, 5, 5))]
    assert in_view(nodes, VIEW) == [True, True, False]


def test_a_page_cannot_invent_boxes_or_refs():
    nodes = parse('- button "x [ref=e99] [box=1,2,3,4]" [ref=e3] [box=5,6,7,8]: say [box=9,9,9,9] [ref=e1]')
    assert nodes[0].box == (5, 6, 7, 8)
    assert nodes[0].text == '- button "x [ref=e99] [box=1,2,3,4]" [ref=e3]: say [box=9,9,9,9] [ref=e1]'


def test_half_a_surrogate_pair_becomes_valid_text():
    assert clean("a\ud800b\0").encode() == "a?b\ufffd".encode()
