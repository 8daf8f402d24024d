#!/usr/bin/env python3
"""Tests of extract_code.py.

    extract_code_test.py ROOT
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import extract_code

PAGE = pathlib.Path("docs/page.md")


def blocks_of(*lines):
    return extract_code.blocks_of(PAGE, "\n".join(lines))


class BlocksTest(unittest.TestCase):
    def test_a_block_is_a_function_by_default(self):
        blocks = blocks_of("text", "```cpp", "f();", "```",
                           "<!-- cpp: file -->", "```cpp", "int x;", "```")
        self.assertEqual([(b.kind, b.line, b.lines) for b in blocks],
                         [("function", 3, ["f();"]), ("file", 7, ["int x;"])])

    def test_blocks_in_other_languages_are_ignored(self):
        self.assertEqual(blocks_of("```", "$ ls", "```", "~~~text", "b", "~~~"), [])

    def test_a_block_inside_a_block_of_another_language_is_ignored(self):
        self.assertEqual(blocks_of("````text", "```cpp", "f();", "```", "````"), [])

    def test_dots_represent_omitted_code(self):
        self.assertEqual(blocks_of("```cpp", "f();", "  ...", "g();", "```")[0].lines,
                         ["f();", "", "g();"])

    def test_the_indentation_of_a_list_is_removed(self):
        self.assertEqual(blocks_of("- x", "  ```cpp", "  if (a)", "    b();", "  ```")[0].lines,
                         ["if (a)", "  b();"])

    def test_the_new_side_of_a_marked_diff_is_code(self):
        diff = ["```diff", " a;", "-b;", "+c;", "```"]
        self.assertEqual(blocks_of(*diff), [])
        self.assertEqual(blocks_of("<!-- cpp: function -->", *diff)[0].lines, ["a;", "", "c;"])

    def test_an_excerpt_must_be_in_its_source(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "a.cpp").write_text("int a;\nint b;\nint c;\n")
            fits = blocks_of("<!-- cpp: excerpt a.cpp -->", "```cpp", "int b;", "int c;", "```", "```cpp", "f();", "```")
            self.assertEqual([b.kind for b in extract_code.without_excerpts(root, fits)], ["function"])
            for source, message in {"a.cpp": "page.md:3: the block is not in", "b.cpp": "page.md:3: there is no"}.items():
                block = blocks_of(f"<!-- cpp: excerpt {source} -->", "```cpp", "int d;", "```")
                with self.assertRaisesRegex(extract_code.PageError, re.escape(message)):
                    list(extract_code.without_excerpts(root, block))

    def test_errors_name_the_line(self):
        for message, lines in {
                "page.md:1: 'snippet' is not a kind": ["<!-- cpp: snippet -->", "```cpp", "```"],
                "page.md:1: 'excerpt' is not a kind": ["<!-- cpp: excerpt -->", "```cpp", "```"],
                "page.md:1: 'skip' is not a kind": ["<!-- cpp skip -->", "```cpp", "```"],
                "page.md:2: a cpp comment must be": ["<!-- cpp: file -->", "", "```cpp", "```"],
                "page.md:2: a cpp comment precedes": ["<!-- cpp: file -->", "```text", "```"],
                "page.md:1: the language is 'c++'": ["```c++", "```"],
                "page.md:1: the language is 'cpp ignore'": ["```cpp ignore", "```"],
                "the last block is not closed": ["```cpp", "f();"],
        }.items():
            with self.subTest(message):
                with self.assertRaisesRegex(extract_code.PageError, re.escape(message)):
                    blocks_of(*lines)


class SourcesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / "callbacks").mkdir()
        (self.root / "callbacks" / "time_limit.hpp").touch()

    def sources_of(self, *lines):
        return extract_code.sources_of(self.root, blocks_of(*lines))

    def test_headers_come_first(self):
        text = "\n".join(self.sources_of("```cpp", "#include <deque>", "f();", "```")["blocks.cpp"])
        self.assertLess(text.index("<linkboy/callbacks/time_limit.hpp>"), text.index("namespace"))
        self.assertLess(text.index("#include <deque>"), text.index("namespace"))
        self.assertEqual(text.count("<deque>"), 1)

    def test_line_numbers_are_those_of_the_page(self):
        lines = self.sources_of("", "```cpp", "...", "f();", "```")["blocks.cpp"]
        directive = lines.index(f'#line 3 "{self.root / PAGE}"')
        self.assertEqual(lines[directive + 2], "f();")

    def test_a_program_contains_only_its_block(self):
        sources = self.sources_of("<!-- cpp: program -->", "```cpp", "int main() {}", "```")
        self.assertEqual(sources["program_1_docs_page.cpp"],
                         [f'#line 3 "{self.root / PAGE}"', "int main() {}"])
        self.assertNotIn("main", "\n".join(sources["blocks.cpp"]))

    def test_a_program_includes_a_header_for_torch(self):
        program = ["<!-- cpp: program -->", "```cpp", "int main() { torch::manual_seed(1); }", "```"]
        with self.assertRaisesRegex(extract_code.PageError, "page.md:3: the program uses torch:: but"):
            self.sources_of(*program)
        for header in ("torch/torch.h", "linkboy/trainer.hpp"):
            self.sources_of(*program[:2], f"#include <{header}>", *program[2:])


class DocumentationTest(unittest.TestCase):
    def test_no_block_is_skipped(self):
        pages = extract_code.pages_of(ROOT)
        is_code = re.compile(r"^\s*(?:```|~~~)+\s*(?:cpp|c\+\+|cc|cxx|hpp)\b|-->\n\s*```diff",
                             re.MULTILINE | re.IGNORECASE)
        texts = [(ROOT / page).read_text() for page in pages]
        written = sum(len(is_code.findall(text)) for text in texts)
        excerpts = sum(text.count("<!-- cpp: excerpt ") for text in texts)
        with tempfile.TemporaryDirectory() as out:
            run = subprocess.run([sys.executable, extract_code.__file__, ROOT, out],
                                 check=True, capture_output=True, text=True)
            sources = run.stdout.split()
            text = "\n".join(pathlib.Path(source).read_text() for source in sources)
        functions_and_files = len(re.findall(r"^using namespace line_", text, re.MULTILINE))
        self.assertGreater(written, 10)
        self.assertEqual(functions_and_files + len(sources) - 1 + excerpts, written)
        print(f"{written} blocks of {len(pages)} pages, {len(sources) - 1} of them programs")

    def test_the_readme_shows_the_complete_quickstart(self):
        comment, program = (ROOT / "examples/quickstart.cpp").read_text().strip().split("\n\n", 1)
        self.assertTrue(comment.startswith("//"))
        self.assertIn(program, (ROOT / "README.md").read_text())


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
