"""What every script of this project does with bad input: one clear line, and exit code 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns a ValueError or OSError into a line on stderr and exit code 2, and Ctrl-C into exit code 130."""
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(_fail(str(error), 2))
    except KeyboardInterrupt:
        sys.exit(_fail("interrupted", 130))


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code
