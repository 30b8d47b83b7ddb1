"""The report page: text is escaped, and text in common is marked."""

from memsinks_jax.reporting import report


def test_text_of_documents_cannot_break_the_page(tmp_path):
    words = report.marked_like("a <b> c & d", "a x c & d")
    assert words == "<mark>a</mark> &lt;b&gt; <mark>c &amp; d</mark>"
    report.write_page(
        tmp_path / "index.html", "T < U", [report.paragraph("1 < 2", "note"), report.code("a & b")]
    )
    page = (tmp_path / "index.html").read_text()
    assert "<title>T &lt; U</title>" in page
    assert "1 &lt; 2" in page
    assert "a &amp; b" in page
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_share_alike():
    assert report.share_alike("a b c", "a b c") == 1
    assert report.share_alike("a x c d", "a b c") == 2 / 3
    assert report.share_alike("b c", "a b c") == 0
    assert report.share_alike("", "a b") == 0


def test_tables():
    html = report.table(["name", "holds"], [["x", "yes"], ["y", "no"]], ["", "verdict"])
    assert '<td class="yes">yes</td>' in html
    assert '<td class="no">no</td>' in html
    # it scrolls on a phone
    assert html.startswith('<div class="wide"><table>') and html.endswith("</table></div>")
    text = report.plain_table(["name", "n"], [["long name", "1"], ["b", "12"]])
    assert text.splitlines() == ["name        n", "---------  --", "long name   1", "b          12"]


def test_numbers_of_a_row():
    cells = report.numbers(
        ["loss", "gap closed", "steps"], [[1.0, 2.0, 3.0], [], [820.0, 820.0, 820.0]]
    )
    assert cells == ["2.000 ± 2.484", "–", "820"]
