#!/usr/bin/env python3
"""Doxygen's view of a header: adds what would be the same in every header.

    doxygen_filter.py HEADER    prints the header, with as many lines as it has

A comment above `#pragma once` is that of the file. Declarations that say the same everywhere need
no comments of their own.
"""

import pathlib
import re
import sys

# Declarations, and what Doxygen reads if the line before them is no comment.
COMMENTS = [(re.compile(pattern), comment) for pattern, comment in (
    (r"^struct (?:LINKBOY_API )?(\w+)Options \{$", r"Options of \1."),
    (r"^  ParamGroupField field = ", "The field of the param groups that the schedule sets."),
    (r"^  static CreateSchedulerFn create_scheduler_fn\(",
     "For TrainOptions::create_scheduler_fn: calls the constructor when the run starts."),
)]


def comment_of(line):
    for pattern, comment in COMMENTS:
        if match := pattern.match(line):
            return match.expand(comment)
    return None


def documented(lines):
    """All lines."""
    top = lines.index("#pragma once")
    yield from (re.sub("^(//)?", "///", line) for line in lines[:top])
    yield "/// @file"
    previous = ""
    for line in lines[top + 1:]:
        comment = None if previous.lstrip().startswith("///") else comment_of(line)
        yield f"/** {comment} */ {line}" if comment else line
        previous = line


if __name__ == "__main__":
    print("\n".join(documented(pathlib.Path(sys.argv[1]).read_text().split("\n"))), end="")
