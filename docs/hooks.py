"""What mkdocs calls when it builds the site: pages that are made from the code, and formulas without JavaScript."""

import html
import re

import lines
import paper
import reference
from latex2mathml.converter import convert
from mkdocs.structure.files import File

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.+?)\\[)\]]</\1>', re.DOTALL)


def on_files(files, config):
    """Add the reference and the linked code; the executed pages of the paper take the place of their sources."""
    made = reference.pages() | paper.pages() | lines.pages()
    for path, content in made.items():
        if (source := files.get_file_from_path(path)) is not None:
            files.remove(source)
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links to lines of the code lead to the pages that show it."""
    return lines.for_site(markdown, page.file.src_uri)


def on_page_content(content, page, config, files):
    """Formulas as MathML, which browsers draw by themselves."""
    return FORMULA.sub(lambda match: _mathml(match[2], "block" if match[1] == "div" else "inline"), content)


def on_post_page(output, page, config):
    """Say which language a page is in."""
    korean = page.file.src_uri.endswith(".ko.md")
    return output.replace('<html lang="en"', '<html lang="ko"', 1) if korean else output


def _mathml(formula: str, display: str) -> str:
    return convert(html.unescape(formula).strip(), display=display)
