"""Experiments beside what the paper reports: one page without network, and the same as Markdown."""

from collections.abc import Sequence
from html import escape

from rlpd_gx.report.chapter import Chapter, ClaimVerdict, Figure, Table
from rlpd_gx.report.charts import bar_legend, bars, chart, legend
from rlpd_gx.report.page import document, section

ABOUT = (
    "Figures of the paper are shown as it reports them. Ours come from the runs listed below each table. "
    "A violation is a forbidden action that ran while an allowed one existed; an unsafe event is what rules should "
    "prevent, such as a lost life."
)


def results_page(title: str, chapters: Sequence[Chapter], notes: Sequence[str] = ()) -> str:
    """The whole page; `notes` are what readers have to know of all its rows."""
    links = "".join(
        f'<li><a href="#{escape(chapter.name)}">{escape(chapter.title)}</a></li>' for chapter in chapters
    )
    overview = section("Verdicts", f'<table class="verdicts">{"".join(map(_summary, chapters))}</table>')
    known = "".join(f"<p>Note: {escape(note)}</p>" for note in notes)
    body = f"<nav><ul>{links}</ul></nav>{known}{overview}" + "".join(map(_chapter, chapters))
    return document(title, ABOUT, body)


def results_markdown(title: str, chapters: Sequence[Chapter], notes: Sequence[str] = ()) -> str:
    """The same without figures."""
    said = [f"Note: {note}" for note in notes]
    parts = [f"# {title}", ABOUT, *said, "## Verdicts", _markdown_table(_verdicts(chapters))]
    for chapter in chapters:
        parts += [f"## {chapter.title}", chapter.about, *(f"Note: {note}" for note in chapter.notes)]
        parts += [f"- **{v.word}**: {v.claim}. {v.reason}." for v in chapter.verdicts]
        for table in chapter.tables:
            parts += [f"### {table.caption}", _markdown_table(table)]
        facts = [["", ""], *([name, value] for name, value in chapter.facts.items())]
        parts += [_markdown_table(Table("", facts[0], facts[1:]))]
        parts += ["```sh\n" + "\n".join(chapter.commands) + "\n```"] if chapter.commands else []
    return "\n\n".join(parts).replace("\n\n- **", "\n- **") + "\n"


def _verdicts(chapters: Sequence[Chapter]) -> Table:
    rows = [[c.title, v.claim, str(v.word)] for c in chapters for v in c.verdicts]
    return Table("", ["experiment", "claim", "verdict"], rows)


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(table.heads), line(["---"] * len(table.heads)), *map(line, table.rows)])


def _summary(chapter: Chapter) -> str:
    """The verdicts of a chapter as rows of the overview; the first names the chapter."""
    rows = []
    for i, verdict in enumerate(chapter.verdicts):
        name = f'<a href="#{escape(chapter.name)}">{escape(chapter.title)}</a>' if i == 0 else ""
        rows.append(
            f'<tr><th scope="row">{name}</th><td>{escape(verdict.claim)}</td>'
            f'<td class="word {_class(verdict)}">{escape(verdict.word)}</td></tr>'
        )
    return f"<tbody>{''.join(rows)}</tbody>"


def _chapter(chapter: Chapter) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in chapter.notes)
    verdicts = "".join(
        f'<div class="verdict {_class(verdict)}"><strong>{escape(verdict.word)}</strong><p>{escape(verdict.claim)}</p>'
        f'<p class="reason">{escape(verdict.reason)}</p></div>'
        for verdict in chapter.verdicts
    )
    tables = "".join(
        f'<h3>{escape(table.caption)}</h3><div class="wide">{_table(table)}</div>' for table in chapter.tables
    )
    facts = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(value)}</td></tr>'
        for name, value in chapter.facts.items()
    )
    commands = "".join(f'<pre class="command"><code>{escape(text)}</code></pre>' for text in chapter.commands)
    return (
        f'<section id="{escape(chapter.name)}"><h2>{escape(chapter.title)}</h2>'
        f'<p class="caption">{escape(chapter.about)}</p>'
        f"{notes}{verdicts}{tables}{''.join(map(_figure, chapter.figures))}"
        f"<h3>Runs</h3><table><tbody>{facts}</tbody></table><h3>Commands</h3>{commands}</section>"
    )


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
    rows = "".join(
        f'<tr{_paper(row)}><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td class="number">{escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _paper(row: list[str]) -> str:
    """Figures of others look different from ours."""
    return ' class="paper"' if any(word in row[0] for word in ("reported", "published")) else ""


def _figure(figure: Figure) -> str:
    if figure.bars is not None:
        keys, drawn = bar_legend(figure.bars), bars(figure.bars)
    else:
        last = max((max(s.points[0]) for s in figure.curves if s.points[0]), default=0.0)
        keys = legend(figure.curves)
        drawn = chart(figure.curves, last, percent=figure.percent, x_label=figure.x_label)
    if not drawn:
        return f'<figure><h3>{escape(figure.title)}</h3><p class="empty">Not measured yet.</p></figure>'
    return (
        f"<figure><h3>{escape(figure.title)}</h3>{keys}{drawn}"
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _class(verdict: ClaimVerdict) -> str:
    return verdict.word.replace(" ", "-")
