"""Finds wordings that CONTRIBUTING.md ("Wording") advises against, and torn or overlong comments. Fails if there are any.

    python3 check_language.py ROOT [PREFIX...] [--count]

Checks the files whose paths begin with a PREFIX, or all files. --count prints the number of findings per pattern.
"""

import pathlib
import re
import sys

MARKDOWN_WIDTH, COMMENT_WIDTH, SHORT = 120, 100, 25
WORDS = {
    "headless": r"^\s*/// (Of|For|As (?!with)|That of|Those of)\b",
    "anew": r"\banew\b",
    "lest": r"\blest\b",
    "go on": r"\b(go|goes|going|went) on\b(?! (a|the|one|each|its|both|two) )",
    "has none": r"\b(has|have|had) none\b",
    "so many": r"\b(every|each|after|of|so) so many\b",
    "at once": r"\bat once\b",
    "beside": r"\bbeside\b",
}
FOLDERS = "docs include src callbacks metrics schedulers tests examples benchmarks".split()
ALLOWED = {"tests/structure/check_language.py"}  # it quotes the patterns


def comment_of(lines, number):
    found = re.match(r"\s*//[/!]?(?: |$)(.*)", lines[number]) if 0 <= number < len(lines) else None
    return found and found.group(1)


def is_torn(before, comment, after):
    """Whether a formatter has moved a few words to a separate line."""
    is_inside = re.search(r"[\w,`]$", before or "") and re.search(r"[\w,`]$", comment)
    return len(comment.strip()) < SHORT and is_inside and all(
        re.match(r"\s*[a-z`]", text or "") for text in (comment, after))


def findings_of_markdown(lines, is_code):
    for number, line in enumerate(lines):
        if len(line) > MARKDOWN_WIDTH and not is_code[number] and not line.startswith("|"):
            yield number, "wide"
        is_header = line.startswith("|") and re.match(r"\|[-:| ]+\|$", (lines + [""])[number + 1])
        if is_header and any(cell.strip() in ("", "what") for cell in line.strip("| \n").split("|")):
            yield number, "table header"


def findings_of_code(lines):
    for number, line in enumerate(lines):
        comment = comment_of(lines, number)
        if comment and len(line) > COMMENT_WIDTH and " " in comment:
            yield number, "wide"
        if comment and is_torn(comment_of(lines, number - 1), comment, comment_of(lines, number + 1)):
            yield number, "torn"


def findings(path, lines):
    fences = [line.lstrip().startswith("```") for line in lines]
    is_code = [sum(fences[:number + 1]) % 2 == 1 for number in range(len(lines))]
    is_markdown = path.endswith(".md")
    yield from findings_of_markdown(lines, is_code) if is_markdown else findings_of_code(lines)
    for number, line in enumerate(lines):
        is_text = not is_code[number] if is_markdown else comment_of(lines, number) is not None
        for name, pattern in WORDS.items() if is_text else ():
            if re.search(pattern, line) and not (name == "headless" and comment_of(lines, number - 1)):
                yield number, name


root = pathlib.Path(sys.argv[1])
prefixes = tuple(word for word in sys.argv[2:] if word != "--count") or ("",)
places = ["*", *(folder + "/**/*" for folder in FOLDERS)]
files = sorted(str(path.relative_to(root)) for place in places for path in root.glob(place)
               if path.suffix in (".md", ".hpp", ".cpp"))
found = [(path, number + 1, name) for path in files
         if path not in ALLOWED and path.startswith(prefixes)
         for number, name in findings(path, (root / path).read_text().splitlines())]
if "--count" in sys.argv:
    print(*(f"{name}: {sum(kind == name for *_, kind in found)}" for name in sorted({f[2] for f in found})), sep="\n")
else:
    sys.exit("\n".join(f"{path}:{number}: {name}" for path, number, name in found) or 0)
