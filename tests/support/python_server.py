"""Runs scripts for the tests, each in a fork of one process that has already imported torch.

Importing torch takes seconds, and dozens of tests run Python scripts. Each line of standard input is a
request, a JSON array [SCRIPT, ARGUMENT ...]. The answer is a line {"status": ..., "output": ...} with the
exit status and the standard output of the script. Standard error is passed on.
"""

import json
import os
import pathlib
import runpy
import sys
import traceback

import torch  # noqa: F401  (used by the forks)


def run_script(script, arguments):
    sys.argv = [script, *arguments]
    sys.path[0] = str(pathlib.Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def answer(script, arguments):
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write_end, sys.stdout.fileno())
        os.close(read_end)
        os.close(write_end)
        status = run_script(script, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(write_end)
    with open(read_end, encoding="utf-8", errors="replace") as output:
        text = output.read()
    return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "output": text}


def main():
    for line in sys.stdin:
        script, *arguments = json.loads(line)
        print(json.dumps(answer(script, arguments)), flush=True)


if __name__ == "__main__":
    main()
