"""What griffe does not read in a docstring as it is meant."""

import re
import textwrap

import griffe

RETURNS = re.compile(r"^(Returns|Yields):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)


class PlainText(griffe.Extension):
    """ "Returns:" is text like any other, where griffe would look for a name or a type; "<" begins no tag."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring is not None:
            text = RETURNS.sub(_returns, obj.docstring.value + "\n")
            obj.docstring.value = re.sub(r"(`[^`]*`)|<", lambda match: match[1] or "&lt;", text).rstrip()


def _returns(section: re.Match) -> str:
    # A blank line before a list, as Markdown has it.
    text = re.sub(r"(?<=:)\n(?=- )", "\n\n", textwrap.dedent(section[2]).strip())
    return f"**{section[1]}:**\n\n{text}\n\n"
