"""Checks the table "Components" of docs/architecture.md: the code lines of each component, the size of its code in a
release build, and what it links. Checks that a component uses only the symbols of those that it links.

    components.py SOURCE CONFIG LIBRARY...    the static libraries, of which the first is that of the core
"""

import itertools
import pathlib
import re
import subprocess
import sys

ROOTS = ("include/linkboy", "src", "callbacks", "metrics", "schedulers")
# A symbol with one of these prefixes belongs to the library.
OTHERS = {"Boost.Program_options": "_ZN5boost15program_options", "libjpeg-turbo": "jpeg_", "libpng": "png_",
          "libdeflate": "libdeflate_"}
ROW = re.compile(r"\| `linkboy::(\w+)` \|[^|]*\| ([\d,]+) \| ([\d.]+) MiB \| ([^|]*) \|")
MOST_LINES_OFF = 0.02
MOST_SIZE_OFF = 0.3  # compilers and their versions differ


def component_of(path, components):
    parts = [part for part in path.with_suffix("").parts if part not in ("include", "linkboy", "src")]
    return parts[0] if parts and parts[0] in components else "linkboy"


def code_lines(text):
    """The lines that are neither empty nor only a comment."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("//"))


def lines_of(source, components):
    counts = dict.fromkeys(components, 0)
    for root in ROOTS:
        for file in (source / root).rglob("*.[hc]pp"):
            counts[component_of(file.relative_to(source), components)] += code_lines(file.read_text())
    return counts


def output_of(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def size_of(library):
    """The bytes of machine code and constants."""
    return sum(int(line.split()[0]) for line in output_of("size", library).splitlines()[1:])


def symbols_of(library, *options):
    lines = output_of("nm", "--extern-only", *options, library).splitlines()
    return {line.split()[-1] for line in lines if len(line.split()) >= 2}


def strong_symbols_of(library):
    lines = output_of("nm", "--extern-only", "--defined-only", library).splitlines()
    return {line.split()[2] for line in lines if re.match(r"\w+ [TDBR] ", line)}


def main():
    source, config = pathlib.Path(sys.argv[1]), sys.argv[2]
    libraries = {path.stem.removeprefix("liblinkboy_").removeprefix("lib"): path
                 for path in map(pathlib.Path, sys.argv[3:])}
    table = {name: row for name, *row in ROW.findall((source / "docs/architecture.md").read_text())}
    assert set(table) == set(libraries), f"the table lists {sorted(table)}, but there are {sorted(libraries)}"
    counts = lines_of(source, table)
    strong = {name: strong_symbols_of(path) for name, path in libraries.items()}
    defined = {name: symbols_of(path, "--defined-only") for name, path in libraries.items()}
    wrong = []
    for a, b in itertools.combinations(libraries, 2):
        # What is inline or a template may be in both, as a weak symbol.
        both = strong[a] & strong[b]
        if both:
            wrong.append(f"linkboy::{a} and linkboy::{b} both define {len(both)} symbols, such as {min(both)}")
    for name, (lines, size, links) in table.items():
        documented = int(lines.replace(",", ""))
        if abs(counts[name] - documented) > MOST_LINES_OFF * documented:
            wrong.append(f"linkboy::{name} has {counts[name]} code lines, not {documented}")
        megabytes = size_of(libraries[name]) / 2**20
        if config == "Release" and abs(megabytes - float(size)) > MOST_SIZE_OFF * float(size):
            wrong.append(f"the code of linkboy::{name} has {megabytes:.2f} MiB, not {size}")
        needed = symbols_of(libraries[name], "--undefined-only") - defined[name]
        used = {f"`linkboy::{other}`" for other in libraries if needed & (defined[other] - defined[name])}
        used |= {other for other, prefix in OTHERS.items() if any(symbol.startswith(prefix) for symbol in needed)}
        documented = {link.strip() for link in links.split(",")} - {"LibTorch"}
        if used - documented:
            wrong.append(f"linkboy::{name} uses {sorted(used - documented)}, which the table does not name")
        if documented - used:
            wrong.append(f"linkboy::{name} does not use {sorted(documented - used)}, which the table names")
    print("\n".join(wrong) or f"the table describes the {len(table)} components")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
