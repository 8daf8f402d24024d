"""Runs scripts/setup in faulty environments: each error must name the fault and the remedy. Also checks the
arguments of other scripts, and the progress of scripts/maintain/with_status in a terminal.

    python3 setup_test.py PATH/TO/scripts [unittest arguments]

The test installs nothing and needs no network: PATH is a folder with a few real programs and with
stand-ins for the programs that install.
"""

import json
import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = None
REAL = "bash chmod cut dirname env flock grep mkdir rm rmdir sed stty sync tail touch".split()


def scripts():
    """Returns the paths of all scripts, relative to the checkout. Other scripts source bare_root.sh."""
    return sorted(str(path.relative_to(SCRIPTS.parent)) for path in SCRIPTS.rglob("*")
                  if path.is_file() and path.suffix != ".sh" and "__pycache__" not in path.parts)


class SetupTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for program in REAL:
            (self.bin / program).symlink_to(shutil.which(program))
        self.cache = self.folder / "cache/linkboy"
        self.venv = self.cache / "torch-2.11.0"
        self.stand_in("dpkg-query", "echo install ok installed")
        self.stand_in("df", "echo Avail; echo 100000")
        self.stand_in("id", "echo 0")
        self.stand_in("apt-cache", "echo '  Candidate: 1.0'")

    def stand_in(self, program, text):
        (self.bin / program).unlink(missing_ok=True)
        (self.bin / program).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (self.bin / program).chmod(0o755)

    def setup(self, *arguments, **variables):
        """Returns the exit status and the output."""
        variables = {"PATH": str(self.bin), "HOME": str(self.folder),
                     "XDG_CACHE_HOME": str(self.cache.parent), **variables}
        result = subprocess.run([SCRIPTS / "setup", *arguments], env=variables, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        return result.returncode, result.stdout

    def assert_error(self, *words, **variables):
        status, output = self.setup(**variables)
        self.assertEqual(status, 1, output)
        self.assertNotIn("setup: done", output)
        error = output[output.rindex("setup: error: "):]
        for word in words:
            self.assertIn(word, error)
        return output

    def complete_wheel(self):
        self.venv.mkdir(parents=True)
        (self.venv / ".complete").touch()

    def test_tools_of_tests_and_lint_are_installed_with_dev_only(self):
        plain = set(self.setup("--list")[1].split())
        dev = set(self.setup("--dev", "--list")[1].split())
        clusters = set(self.setup("--clusters", "--list")[1].split())
        self.assertLess(dev, clusters)
        self.assertEqual(clusters & {"slurm-wlm", "mpich"}, {"slurm-wlm", "mpich"})
        self.assertLessEqual({"cmake", "g++", "python3-venv", "dataset-fashion-mnist"}, plain)
        self.assertLessEqual(plain, dev)
        tools = {"libgtest-dev", "libbenchmark-dev", "openmpi-bin", "clang", "clang-tidy", "cppcheck", "doxygen"}
        self.assertEqual(dev & tools, tools)
        self.assertEqual(plain & tools, set())

    def test_names_of_packages_hold_in_every_release(self):
        for name in self.setup("--dev", "--list")[1].split():
            self.assertNotRegex(name, r"\d\d|-\d", "its number changes from release to release")

    def test_a_package_that_apt_does_not_know_is_an_error_unless_it_contains_data(self):
        self.complete_wheel()
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("apt-get", f"echo $* >>{self.folder}/calls")
        self.stand_in("apt-cache", '[[ $2 = lib*o-dev ]] && echo "  Candidate: (none)" || echo "  Candidate: 1.0"')
        self.assert_error("apt does not know these packages: libgloo-dev.", "by hand")
        self.stand_in("apt-cache", '[ "$2" = dataset-fashion-mnist ] || echo "  Candidate: 1.0"')
        status, output = self.setup()
        self.assertEqual(status, 0, output)
        self.assertIn("skip: apt does not know dataset-fashion-mnist. scripts/quickstart --data FOLDER", output)
        installs = [line for line in (self.folder / "calls").read_text().splitlines() if "--yes" in line]
        self.assertEqual(len(installs), 1)
        self.assertIn("libgloo-dev", installs[0])
        self.assertNotIn("dataset-fashion-mnist", installs[0])

    def test_an_unknown_option_is_an_error(self):
        self.assertEqual(self.setup("--develop"), (1, "setup: error: unknown option '--develop'; the options are "
                                                      "--dev, --clusters, --list and --help\n"))

    def test_help_is_printed_without_an_install(self):
        status, output = self.setup("--help")
        self.assertEqual(status, 0)
        self.assertRegex(output, r"^Installs the dependencies(.|\n)* scripts/setup --dev (.|\n)*LINKBOY_PIP_HASHES")
        self.assertNotIn("set -", output)
        self.assertFalse(self.cache.exists())

    def test_wrong_variables_are_errors_before_anything_is_installed(self):
        for version in ("2.10.0", "v2.12", "--help", "../2.11.0"):
            self.assert_error(f"LINKBOY_TORCH_VERSION is '{version}'", "2.11.0 or newer",
                              LINKBOY_TORCH_VERSION=version)
        self.assert_error("LINKBOY_USE_PYTHON_TORCH is 'yes'", "must be 1", LINKBOY_USE_PYTHON_TORCH="yes")
        self.assert_error("XDG_CACHE_HOME is 'cache'", "absolute path", XDG_CACHE_HOME="cache")
        self.assert_error("neither XDG_CACHE_HOME nor HOME is set", XDG_CACHE_HOME="", HOME="")
        self.assertFalse(self.cache.exists())

    def test_any_supported_release_can_be_selected(self):
        for version in ("2.11.0", "2.15.0", "2.11.0+cpu", "3.0.1"):
            venv = self.cache / f"torch-{version}"
            venv.mkdir(parents=True)
            (venv / ".complete").touch()
            self.assertIn(f"skip: LibTorch {version} is in", self.setup(LINKBOY_TORCH_VERSION=version)[1])

    def test_a_cache_that_cannot_be_written_is_an_error(self):
        self.complete_wheel()
        (self.cache / "setup.log").mkdir()  # because root can write to any file
        self.assert_error(f"setup.log in {self.cache} cannot be written", "XDG_CACHE_HOME", "Torch_DIR")

    def test_installed_parts_are_skipped(self):
        self.complete_wheel()
        status, output = self.setup()
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"^setup: skip: LibTorch 2.11.0 is in .*\n"
                                 r"setup: skip: all \d+ Debian packages are installed\nsetup: done\n$")

    def test_a_given_libtorch_needs_neither_wheel_nor_toolkit(self):
        (self.folder / "TorchConfig.cmake").touch()
        for variable in ("Torch_DIR", "CMAKE_PREFIX_PATH"):
            status, output = self.setup(**{variable: str(self.folder)})
            self.assertEqual(status, 0, output)
            self.assertIn(f"skip: LibTorch is given by {variable}", output)
            self.assertFalse(self.venv.exists())

    def test_a_wrong_torch_dir_is_an_error(self):
        self.assert_error("Torch_DIR is /nowhere", "TorchConfig.cmake", "share/cmake/Torch", Torch_DIR="/nowhere")

    def test_other_systems_get_a_list_of_the_packages(self):
        (self.bin / "dpkg-query").unlink()
        self.assert_error("not a Debian-like system", "libgloo-dev", "by hand", "Torch_DIR")

    def test_without_root_and_sudo_the_command_for_an_administrator_is_shown(self):
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("id", "echo 1000")
        self.assert_error("needs root or sudo", "apt-get install --no-install-recommends cmake")
        self.stand_in("sudo", "echo 'user is not in the sudoers file'; exit 1")
        self.assert_error("needs root or sudo")

    def test_a_failing_apt_get_is_shown(self):
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("apt-get", '[ "$1" = update ] || { echo E: Failed to fetch g++ >&2; exit 100; }')
        output = self.assert_error("apt-get install failed", "Check the network", "/etc/apt")
        self.assertIn("exit status 100", output)
        self.assertIn("E: Failed to fetch g++", output)

    def test_a_full_disk_is_an_error_before_anything_is_installed(self):
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("df", "echo Avail; echo 10999")
        output = self.assert_error("has 10 GB free", "needs about 11 GB", "XDG_CACHE_HOME")
        self.assertNotIn("Debian packages", output)

    def test_a_disk_that_fills_up_during_a_command_is_named(self):
        self.complete_wheel()
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("apt-get", "exit 1")
        words = f"the disk of {self.cache} is full; free some space"
        self.assertNotIn(words, self.assert_error("apt-get update failed"))
        self.stand_in("df", "echo Avail; echo 1")
        self.assertIn(words, self.assert_error("apt-get update failed"))

    def test_an_old_python_is_an_error(self):
        self.stand_in("python3", '[ "$1" = --version ] && echo Python 3.9.2; exit 1')
        self.assert_error("Python 3.9.2", "needs Python 3.10", "Torch_DIR")

    def test_an_interrupted_install_is_repeated(self):
        # Makes an environment whose first call of pip fails.
        (self.folder / "python").write_text(f"""#!/usr/bin/env bash
            if [ "$2" = pip ] && [ -e {self.folder}/offline ]; then echo ERROR: no route >&2; exit 1; fi""")
        (self.folder / "python").chmod(0o755)
        self.stand_in("python3", f"""[ "$1" = -m ] || exit 0
            mkdir -p "$3/bin" && echo "$(<{self.folder}/python)" >"$3/bin/python" && chmod 755 "$3/bin/python" """)
        (self.folder / "offline").touch()
        output = self.assert_error("pip could not install LibTorch", "Check the network", "again")
        self.assertIn("ERROR: no route", output)
        (self.folder / "offline").unlink()
        (self.venv / "left-over").touch()
        status, output = self.setup()
        self.assertEqual(status, 0, output)
        self.assertIn("is incomplete, because an earlier installation was interrupted", output)
        self.assertFalse((self.venv / "left-over").exists())
        self.assertIn("skip: LibTorch 2.11.0", self.setup()[1])

    def test_peers_are_installed_with_hashes(self):
        self.complete_wheel()
        (self.venv / "bin").mkdir()
        python = self.venv / "bin/python"
        python.write_text(f"""#!/usr/bin/env bash
            while [ $# -gt 0 ]; do
              echo "$1" >>{self.folder}/arguments
              if [ "$1" = --target ]; then mkdir -p "$2"; fi
              shift
            done""")
        python.chmod(0o755)
        self.stand_in("sha256sum", "echo 0123456789abcdef $1")
        arguments = self.folder / "arguments"
        status, output = self.setup("--dev")
        self.assertEqual(status, 0, output)
        self.assertIn("--require-hashes", arguments.read_text())
        self.assertIn("tests/parity/requirements.lock", arguments.read_text())
        shutil.rmtree(self.cache / "test-peers-0123456789ab")
        arguments.unlink()
        status, output = self.setup("--dev", LINKBOY_PIP_HASHES="0")
        self.assertEqual(status, 0, output)
        self.assertNotIn("--require-hashes", arguments.read_text())
        self.assertIn("tests/parity/requirements.txt", arguments.read_text())

    def test_each_lock_has_hashes_for_the_versions_of_its_requirements(self):
        for folder in ("tests/parity", "benchmarks/peers"):
            lines = (SCRIPTS.parent / folder / "requirements.txt").read_text().splitlines()
            wanted = {line.split()[0].lower().replace("_", "-") for line in lines if "==" in line}
            locked = (SCRIPTS.parent / folder / "requirements.lock").read_text()
            entries = re.findall(r"^([\w.-]+==\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", locked,
                                 re.MULTILINE)
            self.assertEqual({name.lower().replace("_", "-") for name, _ in entries}, wanted)

    def test_scripts_refuse_unknown_arguments_before_they_do_anything(self):
        for command in ("test --lnog", "test debug --long", "test relase", "maintain/format --chek", "maintain/soak 5",
                        "maintain/docs --open", "maintain/same_bytes all"):
            script, *arguments = command.split()
            result = subprocess.run([SCRIPTS / script, *arguments], text=True, capture_output=True,
                                    env={"PATH": str(self.bin), "XDG_CACHE_HOME": str(self.cache.parent)})
            self.assertEqual(result.returncode, 2, command)
            self.assertEqual(result.stdout, "")
            self.assertIn(f"{pathlib.Path(script).name}: error: unknown arguments: {' '.join(arguments)}; the script accepts ",
                          result.stderr)
        self.assertFalse(self.cache.exists())

    def test_each_script_answers_help_before_it_does_anything(self):
        for script in scripts():
            result = subprocess.run([SCRIPTS.parent / script, "--help"], text=True, capture_output=True, cwd="/",
                                    env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(self.cache.parent)})
            self.assertEqual((result.returncode, result.stderr), (0, ""), script)
            self.assertRegex(result.stdout, r"\w.*\.", script)
            self.assertNotIn("set -", result.stdout, script)
            self.assertNotIn("done", result.stdout, script)
        self.assertFalse(self.cache.exists())

    def test_pages_name_scripts_and_options_that_exist(self):
        root = SCRIPTS.parent
        pages = [*root.glob("*.md"), *(page for folder in ("docs", "examples", "benchmarks", "tests")
                                       for page in (root / folder).rglob("*.md"))]
        helps = {script: subprocess.run([root / script, "--help"], text=True, capture_output=True).stdout
                 for script in scripts()}
        num_commands = 0
        for page in pages:
            if page.name == "CHANGELOG.md":  # the names that scripts had
                continue
            for script, arguments in re.findall(r"(?<![\w/.])(scripts/(?:[\w-]+/)*[\w-]+(?![\w/-]))((?: +[^\s`#;&|]+)*)",
                                                page.read_text()):
                where = f"{page.relative_to(root)}: {script}{arguments}"
                self.assertTrue(script in helps, where)
                for option in re.findall(r"--[\w-]+", arguments):
                    self.assertRegex(helps[script], rf"{option}\b", where)
                num_commands += 1
        self.assertGreater(num_commands, 30)

    def test_contributing_has_a_row_for_each_script_for_maintainers(self):
        rows = re.findall(r"^\| `(scripts/maintain/[^` ]*)` \|", (SCRIPTS.parent / "CONTRIBUTING.md").read_text(),
                          re.MULTILINE)
        self.assertEqual(rows, [script for script in scripts() if script.startswith("scripts/maintain/")])

    def test_warnings_are_errors_in_the_builds_of_developers_only(self):
        """A newcomer's compiler may be newer than any that linkboy was compiled with."""
        listed = json.loads((SCRIPTS.parent / "CMakePresets.json").read_text())["configurePresets"]
        presets = {preset["name"]: preset for preset in listed}

        def has_werror(name):
            preset = presets[name]
            value = preset.get("cacheVariables", {}).get("LINKBOY_WERROR")
            parent = preset.get("inherits")
            return value == "ON" if value or not parent else has_werror(parent)

        self.assertEqual({name for name in presets if has_werror(name)}, {"dev", "debug", "threads"})
        self.assertIn("-D LINKBOY_WERROR=ON", (SCRIPTS.parent / ".ci/run").read_text())

    def test_quickstart_configures_with_the_preset_once_and_then_checks_the_folder(self):
        self.complete_wheel()
        checkout = self.folder / "a checkout"
        shutil.copytree(SCRIPTS, checkout / "scripts")
        calls = self.folder / "calls"
        self.stand_in("cmake", f"echo $* >>{calls}")
        program = checkout / "build/release/examples/programs/fashion_mnist/fashion_mnist"
        program.parent.mkdir(parents=True)
        program.write_text("#!/usr/bin/env bash\necho runs $*\n")
        program.chmod(0o755)

        def quickstart():
            return subprocess.run([checkout / "scripts/quickstart", "--epochs", "1"], text=True, cwd=self.folder,
                                  capture_output=True,
                                  env={"PATH": str(self.bin), "XDG_CACHE_HOME": str(self.cache.parent)})
        result = quickstart()
        self.assertEqual(result.returncode, 0, result)
        self.assertIn(f"the log is in {checkout}/build.log", result.stdout)
        self.assertRegex(result.stdout, r"\nruns --epochs 1\n$")
        (checkout / "build/release/build.ninja").touch()
        self.assertEqual(quickstart().returncode, 0)
        build = "--build build/release --target fashion_mnist"
        self.assertEqual(calls.read_text().splitlines(), ["--preset examples", build, "build/release", build])

        (checkout / "build.log").unlink()
        (checkout / "build.log").mkdir()  # because root can write to any file
        result = quickstart()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "")
        self.assertIn(f"quickstart: error: {checkout} cannot be written to; copy it", result.stderr)

    def test_progress_uses_one_line_of_a_terminal(self):
        leader, terminal = pty.openpty()
        command = "for i in 1 2 3; do echo [$i/3] a source with a long name; sleep 0.7; done"
        process = subprocess.Popen(
            ["bash", "-c", 'stty cols 30 && "$@"', "bash", SCRIPTS / "maintain/with_status", "build",
             self.folder / "log", "bash", "-c", command],
            env={**os.environ, "TERM": "xterm"}, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        output = b""
        try:
            while block := os.read(leader, 1000):
                output += block
        except OSError:  # the end of the terminal
            pass
        self.assertEqual(process.wait(), 0)
        os.close(leader)
        states = output.decode().split("\r\033[K")
        self.assertRegex(states[-1], r"^build: done in 0:\d\d\r\n$")
        self.assertRegex("|".join(states), r"\|build: 0:\d\d \[\d/3\] a source")
        for state in states[:-1]:
            self.assertNotIn("\n", state)
            self.assertLess(len(state), 30)


if __name__ == "__main__":
    SCRIPTS = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
