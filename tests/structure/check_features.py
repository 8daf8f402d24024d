#!/usr/bin/env python3
"""Checks the tests that the pages in tests/features name for each feature. Each row of their tables must name an
existing test, as `Suite.Test`, or an existing file, as `docs/PAGE.md`, and nothing else. No test can show that a
feature is missing: a row whose second cell begins with "not available" must name only pages, and the pages must contain
the names in its first cell.

    check_features.py ROOT         prints each violation; exits with 1 if there are any
    check_features.py --self-test  checks this script
"""

import pathlib
import re
import sys
import tempfile
import unittest

PAGES = ("tests/features/features.md", "tests/features/features_of_hooks.md")
HEADER = "| Feature | linkboy | Shown by |"
TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)")
NAMED_TEST = re.compile(r"\w+\.[A-Z]\w*")
FEWEST_ROWS = 100


def tests_of(root):
    found = {f"{suite}.{name}" for file in (root / "tests").rglob("*.cpp")
             for suite, name in TEST.findall(file.read_text())}
    assert found, f"no tests were found in {root / 'tests'}"
    return found


def rows_of(text):
    """Yields the rows of the feature tables, each with its line number."""
    in_table = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("|"):
            in_table = False
            continue
        if in_table and not re.fullmatch(r"[|\s:-]+", line):
            yield number, line
        in_table = in_table or line == HEADER


def offences_of_missing_feature(root, feature, named):
    pages = [name for name in named if name.endswith(".md")]
    for name in named:
        if name not in pages:
            yield f'names {name}; a row that says "not available" must name a page, because nothing else can show it'
    text = "".join((root / page).read_text() for page in pages if (root / page).is_file())
    for code in re.findall(r"`[^`]*`", feature):
        if pages and code not in text:
            yield f"says that {code} is not available, but {' and '.join(pages)} does not contain it"


def offences(root, fewest_rows=FEWEST_ROWS):
    tests = tests_of(root)
    rows = [(f"{page}:{number}", row) for page in PAGES for number, row in rows_of((root / page).read_text())]
    if len(rows) < fewest_rows:
        yield f"{' and '.join(PAGES)} have {len(rows)} rows; at least {fewest_rows} are expected"
    for where, row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        if len(cells) != 3 or not all(cells):
            yield f"{where} has {len(cells)} cells, or an empty one; there must be three with text"
            continue
        named = re.findall(r"`([^`]*)`", cells[2])
        if not named:
            yield f"{where} names neither a test nor a file"
        rest = re.sub(r"`[^`]*`|[,;\s]|\band\b", "", cells[2])
        if rest:
            yield f'{where} has "{rest}" next to the names of tests and files'
        for name in named:
            if "/" in name or name.endswith(".md"):
                if not (root / name).exists():
                    yield f"{where} names {name}, which does not exist"
            elif not NAMED_TEST.fullmatch(name):
                yield f"{where} names {name}, which is neither Suite.Test nor a path"
            elif name not in tests:
                yield f"{where} names the test {name}, which does not exist"
        if cells[1].startswith("not available"):
            for found in offences_of_missing_feature(root, cells[0], named):
                yield f"{where} {found}"


class CheckFeaturesTest(unittest.TestCase):
    def offences(self, row, fewest_rows=1):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tests/unit").mkdir(parents=True)
            (root / "tests/features").mkdir()
            (root / "tests/unit/a_test.cpp").write_text(
                "TEST(PlainTest, Works) {}\nTEST_F(FixtureTest, Works) {}\nTEST_P(EachTest,\n    Works) {}\n"
                "TYPED_TEST(TypedTest, Works) {}\n")
            other = "# Page\n\n| Other | table |\n|---|---|\n| `x` | |\n\n"
            (root / PAGES[0]).write_text(f"{other}{HEADER}\n|---|---|---|\n{row}\n\n{other}")
            (root / PAGES[1]).write_text(other)
            return list(offences(root, fewest_rows))

    def test_tests_of_every_kind_and_files_are_found(self):
        names = f"`PlainTest.Works`, `FixtureTest.Works`; `EachTest.Works` and `TypedTest.Works`, `{PAGES[0]}`"
        self.assertEqual(self.offences(f"| a \\| b | the same | {names} |"), [])

    def test_a_test_that_does_not_exist_is_named(self):
        [found] = self.offences("| a | b | `PlainTest.Fails` |")
        self.assertIn("features.md:9 names the test PlainTest.Fails, which does not exist", found)

    def test_a_file_that_does_not_exist_is_named(self):
        [found] = self.offences("| a | b | `docs/none.md` |")
        self.assertIn("names docs/none.md, which does not exist", found)

    def test_a_placeholder_is_a_violation_with_and_without_quotes(self):
        self.assertEqual(len(self.offences("| a | b | TODO-LATER |")), 2)
        self.assertEqual(len(self.offences("| a | b | `TODO-LATER` |")), 1)
        self.assertEqual(len(self.offences("| a | b | `PlainTest.Works`, TODO-LATER |")), 1)

    def test_a_row_with_missing_cells_is_a_violation(self):
        for row in ("| a | b |", "| a | | `PlainTest.Works` |", "| a | b | |"):
            self.assertEqual(len(self.offences(row)), 1, row)

    def test_a_missing_feature_names_a_page_that_contains_it_and_nothing_else(self):
        self.assertEqual(self.offences(f"| `x` | not available | `{PAGES[0]}` |"), [])
        [found] = self.offences(f"| `x` | not available; use b | `{PAGES[0]}`, `PlainTest.Works` |")
        self.assertIn('names PlainTest.Works; a row that says "not available" must name a page', found)
        [found] = self.offences(f"| `x` and `y` | not available | `{PAGES[1]}` |")
        self.assertIn(f"says that `y` is not available, but {PAGES[1]} does not contain it", found)

    def test_a_missing_table_is_a_violation(self):
        [found] = self.offences("| a | b | `PlainTest.Works` |", fewest_rows=2)
        self.assertIn("have 1 rows", found)


def main():
    if sys.argv[1:] == ["--self-test"]:
        unittest.main(argv=sys.argv[:1])
    found = list(offences(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or "every feature names an existing test or page")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
