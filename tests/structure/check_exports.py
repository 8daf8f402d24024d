"""Checks that the public symbols that programs use have LINKBOY_API, so that a shared library exports them.

    python3 check_exports.py SOURCE_FOLDER BUILD_FOLDER LIBRARIES...

Examines the symbols of the static libraries that the objects of tests and examples need. A symbol is hidden there
exactly if it would be hidden in a shared library. A hidden symbol must be private, that is, declared only in src/.
"""

import pathlib
import re
import subprocess
import sys


def lines_of(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return done.stdout.splitlines()  # nm fails for objects without symbols


def hidden_in(libraries):
    symbols = set()
    for line in lines_of("readelf", "-sW", *libraries):
        fields = line.split()
        if len(fields) == 8 and fields[5] == "HIDDEN" and fields[6] != "UND":
            symbols.add(fields[7])
    return symbols


def needed_by(objects):
    return {line.split()[-1] for line in lines_of("nm", "--undefined-only", *objects) if " U " in line}


def declared_in(headers):
    """Returns the names of classes defined and functions declared at namespace scope."""
    names = set()
    for header in headers:
        text = header.read_text()
        names.update(re.findall(r"^(?:class|struct) (?:\[\[\w+\]\] |LINKBOY_API )*(\w+)[^;{]*\{", text, re.MULTILINE))
        names.update(re.findall(r"^[A-Za-z\[][^;{}()]*?\b(\w+)\(", text, re.MULTILINE))
    return names


def main():
    source, build = map(pathlib.Path, sys.argv[1:3])
    libraries = [pathlib.Path(path) for path in sys.argv[3:] if path]
    headers = [*source.glob("include/linkboy/**/*.hpp")]
    for folder in ("callbacks", "metrics", "schedulers"):
        headers += source.glob(f"{folder}/*.hpp")
    objects = [path for folder in ("tests", "examples") for path in (build / folder).rglob("*.o")
               if "_deps" not in path.parts]  # a test of the package builds the library again
    assert libraries and objects and headers, "nothing to look at"
    assert all(path.exists() for path in libraries), f"not built: {libraries}"
    needed = needed_by(objects)
    assert any("linkboy" in name for name in needed), "nm found nothing"
    hidden = sorted(needed & hidden_in(libraries))
    public = declared_in(headers)
    private = declared_in(source.glob("src/**/*.hpp"))
    assert {"Trainer", "read_checkpoint"} <= public, "the headers were not understood"
    wrong = []
    for name in lines_of("c++filt", *hidden):
        scopes = re.sub(r"\(.*|\[abi:.*?\]|^vtable for |^typeinfo for ", "", name).split("::")
        owner = next((part for part in scopes if part not in ("linkboy", "detail", "cli", "vision")), "")
        owner = re.sub("<.*", "", owner)
        if owner in public and not ("detail" in scopes and owner in private):
            wrong.append(name)
    for name in wrong:
        print(f"hidden in a shared library although a public header declares it: {name}; "
              "put LINKBOY_API in front of it or of its class")
    print(f"{len(needed)} symbols needed, {len(hidden)} of them private, {len(wrong)} wrongly hidden")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
