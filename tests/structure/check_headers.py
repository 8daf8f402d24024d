#!/usr/bin/env python3
"""Checks that each public header compiles by itself.

    check_headers.py SOURCE BUILD CLANG

Most of the time for a header goes into LibTorch's headers, so clang precompiles the largest of them. A header uses the
precompiled one only if it or a header that it includes includes the same file of LibTorch. So nothing is hidden.
"""

import concurrent.futures
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FOLDERS = ("include/linkboy", "callbacks", "metrics", "schedulers")
# From small to large: each includes the ones before it.
PRECOMPILED = ("ATen/core/Tensor.h", "ATen/core/ivalue.h", "torch/nn/module.h")


class Headers:
    """The public headers of a checkout."""

    def __init__(self, source, build, clang):
        self.source, self.build, self.clang = pathlib.Path(source), pathlib.Path(build), clang
        self.headers = sorted(header for folder in FOLDERS for header in (self.source / folder).rglob("*.hpp"))

    def name(self, header):
        """Returns the path with which users include a header."""
        path = header.relative_to(self.source)
        return str(path.relative_to("include") if path.parts[0] == "include" else "linkboy" / path)

    @functools.lru_cache(None)
    def includes(self, name):
        """Returns all that a public header includes, directly or through public headers."""
        header = next((header for header in self.headers if self.name(header) == name), None)
        if header is None:
            return frozenset()
        direct = re.findall(r"^#include [<\"]([^>\"]+)", header.read_text(), re.MULTILINE)
        return frozenset(direct).union(*(self.includes(include) for include in direct))

    def options(self):
        """Returns the include folders and definitions of a program that uses all of linkboy."""
        options = []
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            if re.search(r" -o CMakeFiles/linkboy(_\w+)?\.dir/", entry["command"]):
                words = shlex.split(entry["command"])
                for word, following in zip(words, words[1:]):
                    option = [word, following] if word == "-isystem" else [word]
                    if re.match("-isystem|-[ID].|-std", word) and option not in options:
                        options.append(option)
        if not options:
            raise SystemExit(f"{self.build}/compile_commands.json does not compile linkboy")
        return [word for option in options for word in option]

    def compile(self, include, *options):
        """Compiles a file that only includes `include`, and returns the errors."""
        command = [self.clang, *self.options(), "-x", "c++-header", "-", "-Wall", "-Wextra", "-Werror", *options]
        return subprocess.run(command, input=f"#include <{include}>\n", text=True, capture_output=True).stderr

    def precompile(self, include, output):
        """Like compile(). The templates that the file uses are instantiated here, and not again for each header."""
        return self.compile(include, "-fpch-instantiate-templates", "-o", output)

    def check(self):
        """Returns a message for each header that does not compile by itself."""
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor() as pool:
            files = {include: f"{folder}/{number}.pch" for number, include in enumerate(PRECOMPILED)}
            for errors in pool.map(self.precompile, files, files.values()):
                if errors:
                    raise SystemExit(errors)

            def errors_of(header):
                included = [include for include in PRECOMPILED if include in self.includes(self.name(header))]
                options = ["-include-pch", files[included[-1]]] if included else []
                return self.compile(self.name(header), "-fsyntax-only", *options)

            return [f"{self.name(header)} does not compile by itself:\n{errors}"
                    for header, errors in zip(self.headers, pool.map(errors_of, self.headers)) if errors]


def main():
    problems = Headers(*sys.argv[1:]).check()
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
