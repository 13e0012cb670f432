"""HTML of notebooks: what is a text is escaped, and marks and bars stand where they should."""

from bertwright.markup import MOST_ROWS, Html, Mark, bars, bold, framed, marked, note, stacked, table

SCRIPT = "<script>alert('x')</script>\"&"


def test_every_text_is_escaped() -> None:
    for html in (
        note(SCRIPT),
        bold(SCRIPT),
        table([[SCRIPT, SCRIPT]], [SCRIPT, SCRIPT]),
        bars([(SCRIPT, 0.5)], chosen=(SCRIPT,)),
        marked(SCRIPT, [Mark(1, 4, SCRIPT, SCRIPT)]),
        framed(SCRIPT, title=SCRIPT),
    ):
        assert isinstance(html, Html)
        assert "<script" not in html
        assert "&lt;" in html
        assert '"&' not in html.replace('"&lt;', "")


def test_html_in_a_table_is_not_escaped_again() -> None:
    assert "<b>a</b>" in table([["name", bold("a")]])
    assert stacked([bold("a"), note(""), bold("b")]) == "<div><b>a</b></div><div><b>b</b></div>"


def test_bars_are_sorted_and_the_rest_is_counted() -> None:
    html = bars([("little", 0.25), ("most", 0.75)], chosen=("most",))
    assert html.index("<b>most</b>") < html.index(">little<")
    assert "width:75.0%" in html
    assert "25.0%" in html
    many = bars((f"name {number}", 0.01) for number in range(MOST_ROWS + 1234))
    assert many.count("<tr") == MOST_ROWS
    assert "… and 1,234 more" in many


def test_marks_stand_in_their_text() -> None:
    html = marked("Ada met <Bob>.", [Mark(8, 13, "PER", "90 %", 1), Mark(0, 3, colour=7)])
    assert '">Ada</span> met <span' in html
    assert 'title="90 %">&lt;Bob&gt; <small><b>PER</b></small></span>.</div>' in html
    assert html.count("214,126,44") == 4  # two colours of each mark, and colour 7 is colour 1 again


def test_of_a_long_text_the_part_with_the_mark_is_shown() -> None:
    text = "a" * 50_000 + "found" + "b" * 50_000
    html = marked(text, [Mark(50_000, 50_005)])
    assert ">found</span>" in html
    assert ">…a" in html
    assert "b…<" in html
    assert len(html) < 5000
    assert marked(text).count("a") < 3100


def test_a_frame_runs_no_script() -> None:
    assert framed("<p>x</p>", title="t").startswith('<iframe sandbox="" title="t" srcdoc="&lt;p&gt;x&lt;/p&gt;"')
