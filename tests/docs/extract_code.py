#!/usr/bin/env python3
"""Creates C++ sources from the ```cpp blocks of the documentation. An outdated block does not compile.

    extract_code.py ROOT OUT    writes the sources into OUT and prints their names, one per line

An HTML comment on the line before a block defines its kind:

    <!-- cpp: function -->   statements; the default
    <!-- cpp: file -->       declarations at namespace scope, which later blocks of the page can use
    <!-- cpp: program -->    a complete program, compiled as a separate source
    <!-- cpp: excerpt PATH -->   text that the source PATH must contain, which is compiled elsewhere

Functions and files include all public headers and preamble.hpp, which declares the names that the pages
use without declaring them. A line `...` represents omitted code. Compilers report the lines of the pages.

If a ```diff block has such a comment, its new side is compiled.
"""

import pathlib
import re
import sys
from dataclasses import dataclass

KINDS = ("function", "file", "program", "excerpt PATH")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/adr/*.md", "docs/coming_from/*.md",
         "docs/tutorials/*.md")
HEADERS = {"include/linkboy": "linkboy", "callbacks": "linkboy/callbacks",
           "metrics": "linkboy/metrics", "schedulers": "linkboy/schedulers"}
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^`]*?)\s*$")
DIRECTIVE = re.compile(r"^\s*<!--\s*cpp\b(.*?)-->\s*$")
OTHER_NAMES_OF_CPP = {"c++", "cc", "cxx", "hpp", "h++"}


class PageError(Exception):
    """The Markdown of a page is ambiguous or incomplete."""


@dataclass
class Block:
    kind: str
    page: pathlib.Path
    line: int  # the number of the first line of code, from 1
    lines: list


def kind_of(directive, where):
    kind = directive.strip().removeprefix(":").strip()
    if kind not in KINDS[:3] and not re.fullmatch(r"excerpt \S+\.[ch]pp", kind):
        raise PageError(f"{where}: '{kind}' is not a kind of block; there are {', '.join(KINDS)}")
    return kind


def is_code(language, where):
    word = re.split(r"[\s{,]", language, maxsplit=1)[0].lower()
    if word in OTHER_NAMES_OF_CPP or (word == "cpp" and language != "cpp"):
        raise PageError(f"{where}: the language is '{language}'; write ```cpp")
    return language == "cpp"


def code_of(line, language):
    if line.strip() == "..." or (language == "diff" and line.startswith("-")):
        return ""
    return line[1:] if language == "diff" else line


def blocks_of(page, text):
    """Returns the code blocks of one page, in order."""
    directive = None  # the kind, if the previous line was a directive
    fence = None      # the open block's indentation, marker and language
    block = None      # the open block, if it is code
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{page}:{number}"
        match = FENCE.match(line)
        if fence:
            if match and match[2].startswith(fence[1]) and not match[3]:
                fence = block = None
            elif block:
                code = line[len(fence[0]):] if line.startswith(fence[0]) else line.lstrip()
                block.lines.append(code_of(code, fence[2]))
            continue
        if match:
            fence = match.groups()
            if is_code(match[3], where) or (directive and match[3] == "diff"):
                block = Block(directive or "function", page, number + 1, [])
                found.append(block)
            elif directive:
                raise PageError(f"{where}: a cpp comment precedes a block that is not cpp")
        elif directive:
            raise PageError(f"{where}: a cpp comment must be on the line before its block")
        match = DIRECTIVE.match(line)
        directive = kind_of(match[1], where) if match else None
    if fence or directive:
        raise PageError(f"{page}: the last block is not closed")
    return found


def identifier(page):
    return re.sub(r"\W", "_", page.with_suffix("").as_posix()).lower()


def line_directive(root, block, offset=0):
    return f'#line {block.line + offset} "{root / block.page}"'


def is_include(line):
    return line.lstrip().startswith("#include")


def public_headers(root):
    headers = [f"{prefix}/{header.relative_to(root / folder).as_posix()}" for folder, prefix in HEADERS.items()
               for header in sorted((root / folder).rglob("*.hpp"))]
    if not headers:
        raise PageError(f"{root} has no public headers")
    return headers


def function_or_file(root, block):
    code = ["" if is_include(line) else line for line in block.lines]
    start, end = ("void code() {", "}") if block.kind == "function" else ("", "")
    name = f"line_{block.line}"
    return [f"namespace {name} {{", start, line_directive(root, block), *code, end, "}",
            f"using namespace {name};"]


def common_source(root, blocks):
    """Returns one source for all functions and files, so that LibTorch's headers are read once."""
    lines = [f"#include <{header}>" for header in public_headers(root)]
    lines.append('#include "docs/preamble.hpp"')
    for block in blocks:
        for offset, line in enumerate(block.lines):
            if is_include(line):
                lines += [line_directive(root, block, offset), line]
    for block in blocks:
        page = f"documentation::{identifier(block.page)}"
        lines += [f"namespace {page} {{", *function_or_file(root, block), "}"]
    return lines


def sources_of(root, blocks):
    """Returns the lines of each source by file name."""
    programs = [block for block in blocks if block.kind == "program"]
    sources = {"blocks.cpp": common_source(root, [b for b in blocks if b.kind != "program"])}
    for number, block in enumerate(programs, start=1):
        text = "\n".join(block.lines)
        if "torch::" in text and not re.search("#include <(torch|linkboy)/", text):
            # The precompiled header would hide it.
            raise PageError(f"{block.page}:{block.line}: the program uses torch:: but includes no header for it")
        name = f"program_{number}_{identifier(block.page)}.cpp"
        sources[name] = [line_directive(root, block), *block.lines]
    return sources


def without_excerpts(root, blocks):
    """Yields the other blocks. Raises PageError if an excerpt is not in its source."""
    for block in blocks:
        if not block.kind.startswith("excerpt "):
            yield block
            continue
        source = root / block.kind.removeprefix("excerpt ")
        if not source.is_file():
            raise PageError(f"{block.page}:{block.line}: there is no {source}")
        if "\n".join(block.lines) not in source.read_text():
            raise PageError(f"{block.page}:{block.line}: the block is not in {source}; copy it from there")


def write_if_changed(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def pages_of(root):
    return [path.relative_to(root) for pattern in PAGES for path in sorted(root.glob(pattern))]


def main():
    root, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    try:
        blocks = [block for page in pages_of(root)
                  for block in blocks_of(page, (root / page).read_text())]
        sources = sources_of(root, list(without_excerpts(root, blocks)))
    except PageError as error:
        print(f"extract_code.py: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in sources.items():
        write_if_changed(out / name, "\n".join(lines) + "\n")
        print(out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
