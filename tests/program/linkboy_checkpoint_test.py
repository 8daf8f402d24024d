"""Runs examples/tools/linkboy_checkpoint like a user.

    python3 linkboy_checkpoint_test.py PATH/TO/linkboy-checkpoint [unittest arguments]

Set LINKBOY_PYTHON to a Python with torch; otherwise the tests that need Python's .pt files are skipped.
"""

import json
import os
import pathlib
import struct
import sys
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import programs  # noqa: E402
import unittest_main  # noqa: E402
from colliding_names import colliding_names  # noqa: E402

PROGRAM = None
PYTHON = os.environ.get("LINKBOY_PYTHON")
SIZES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
         "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1}


def write_safetensors(path, tensors, metadata=None):
    """`tensors` maps each name to (dtype, shape, data)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, part) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def floats(*values):
    return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)


def integers(*values):
    return "I64", [len(values)], struct.pack(f"<{len(values)}q", *values)


class ProgramTest(programs.ProgramTest):
    def file(self, name, tensors, metadata=None):
        write_safetensors(self.path / name, tensors, metadata)
        return self.path / name

    def succeed(self, *arguments, status=0):
        """Returns the lines of the output."""
        done = programs.run([PROGRAM, *arguments])
        self.assertEqual((done.status, done.error), (status, ""))
        return done.output.splitlines()

    def fail_with(self, status, message, *arguments):
        done = programs.run([PROGRAM, *arguments])
        self.assertEqual((done.status, done.output), (status, ""), done.error)
        self.assertIn(message, done.error)

    def values_of(self, path):
        """Returns the descriptions of the tensors in a file with their values, by name."""
        return dict(line.split(": ", 1) for line in self.succeed("--list", path, "--values")[:-1])

    def differences(self, left, right, *options):
        """Returns the lines of the output for two files that differ."""
        return self.succeed("--diff", left, "--with", right, *options, status=3)

    def convert(self, source, target, *options):
        return self.succeed("--convert", source, "--to", target, *options)

    def fail_to_convert(self, message, source, target):
        self.fail_with(1, message, "--convert", source, "--to", target)

    def expect_equal(self, left, right, *options):
        self.assertEqual(self.succeed("--diff", left, "--with", right, *options), ["equal"])


class ListTest(ProgramTest):
    def test_lists_tensors_and_metadata(self):
        path = self.file("a.safetensors", {"w": ("F32", [2, 3], bytes(24)), "b": floats()}, {"format": "pt"})
        expected = ["w: float32 [2, 3] 24 bytes", "b: float32 [0] 0 bytes",
                    'metadata.format: "pt"', "2 tensors, 6 elements, 24 bytes"]
        for options in [], ["--mmap"]:
            self.assertEqual(sorted(self.succeed("--list", path, *options)), sorted(expected))

    def test_statistics_exclude_nan(self):
        nan = float("nan")
        path = self.file("a.safetensors", {"w": floats(nan, 1, 2.5, -2), "n": floats(nan),
                                           "e": floats(), "i": integers(*range(10)),
                                           "inf": floats(float("inf"), 1)})
        self.assertEqual(self.values_of(path), {
            "w": "float32 [4] 16 bytes min -2 max 2.5 mean 0.5 nan 1 first [nan, 1, 2.5, -2]",
            "n": "float32 [1] 4 bytes min - max - mean - nan 1 first [nan]",
            "e": "float32 [0] 0 bytes min - max - mean - first []",
            "i": "int64 [10] 80 bytes min 0 max 9 mean 4.5 first [0, 1, 2, 3, 4, 5, 6, 7, ...]",
            "inf": "float32 [2] 8 bytes min 1 max inf mean inf first [inf, 1]"})

    def test_values_of_every_dtype_are_listed(self):
        path = self.file("a.safetensors", {name: (name, [2], bytes(2 * size)) for name, size in SIZES.items()})
        lines = self.values_of(path)
        self.assertEqual(len(lines), len(SIZES))
        others = {"F8_E8M0": "min 5.87747e-39 ", "BOOL": "min False max False mean 0 first [False, False]",
                  "C64": "min abs 0 max abs 0 mean 0+0j first [0+0j, 0+0j]"}
        for name, line in lines.items():
            self.assertIn(others.get(name, "min 0 max 0 mean 0 first [0, 0]"), line)

    def test_values_are_exact_where_doubles_are_not(self):
        path = self.file("a.safetensors", {
            "u": ("U64", [2], struct.pack("<2Q", 2**64 - 1, 2**53 + 1)),
            "i": integers(-2**63, 2**53 + 1), "c": ("C64", [1], struct.pack("<2f", 3, -4))})
        text = "\n".join(self.succeed("--list", path, "--values"))
        self.assertIn("min 9007199254740993 max 18446744073709551615 ", text)
        self.assertIn("min -9223372036854775808 max 9007199254740993 ", text)
        self.assertIn("min abs 5 max abs 5 mean 3-4j first [3-4j]", text)

    def test_large_tensors_are_read_in_pieces(self):
        count = 3 * 2**20 + 5
        data = bytes(4 * (count - 1)) + struct.pack("<f", 7)
        path = self.file("a.safetensors", {"w": ("F32", [count], data)})
        self.assertIn("min 0 max 7 mean", self.succeed("--list", path, "--values", "--mmap")[0])

    def test_escapes_control_characters(self):
        path = self.file("a.safetensors", {"a\x1b[31m\nb": floats(1)},
                         {"k\u202e": 'tab\t quote" back\\ \x9b caf\u00e9'})
        self.assertEqual(self.succeed("--list", path)[:2], [
            r"a\x1b[31m\nb: float32 [1] 4 bytes",
            r'metadata.k\u202e: "tab\t quote\" back\\ \u009b caf' + "\u00e9\""])

    def test_key_selects_by_dotted_path(self):
        path = self.file("a.safetensors", {"model.0.w": floats(1), "other": floats(2)}, {"step": "3"})
        self.assertEqual(self.succeed("--list", path, "--key", "model"),
                         ["0.w: float32 [1] 4 bytes", "1 tensors, 1 elements, 4 bytes"])
        self.assertEqual(self.succeed("--list", path, "--key", "metadata")[0], 'step: "3"')
        self.fail_with(1, 'there is no "modl" in this state; it contains: model.0.w, other, metadata',
                       "--list", path, "--key", "modl")


def write_pickle(path, pickle, records=()):
    """Writes a .pt file whose data.pkl is `pickle`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in [("data.pkl", b"\x80\x02" + pickle + b"."), *records]:
            archive.writestr("archive/" + name, data)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def repeated_tensor(sizes, strides):
    """Returns the pickle of a dict with a tensor in a storage of 4 bytes, and the record of the storage."""
    def numbers(values):
        return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", v) for v in values) + b"t"
    storage = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + b"K\x01tQ"
    return (b"}" + text(b"w") + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00"
            + numbers(sizes) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtRs",
            [("data/0", bytes(4))])


class HostileFileTest(ProgramTest):
    """Files that would use all memory or exceed the timeout of `run` if their cost were not bounded."""

    def test_colliding_names_are_refused(self):
        names = colliding_names(40)
        path = self.file("a.safetensors", {}, dict.fromkeys(names, "x"))
        self.fail_with(1, "keys were chosen to exhaust the memory", "--list", path)
        path = self.file("b.safetensors", dict.fromkeys(names, floats()))
        self.assertEqual(len(self.succeed("--list", path)), 41)
        self.fail_to_convert("keys were chosen to exhaust the memory", path, self.path / "b.pt")
        path = self.file("c.safetensors", {"a." + name: floats() for name in names})
        self.assertEqual(len(self.succeed("--list", path, "--key", "a")), 41)

    def test_metadata_of_a_million_keys_is_listed(self):
        path = self.file("a.safetensors", {}, {str(i): "" for i in range(1_000_000)})
        self.assertEqual(len(self.succeed("--list", path)), 1_000_001)

    def test_a_long_key_above_many_values_is_refused(self):
        path = self.path / "a.pt"
        write_pickle(path, b"}" + text(b"k" * 1_000_000) + b"](" + b"N" * 20_000 + b"es")
        self.fail_with(1, "the paths of its values have more than", "--list", path)

    def test_a_long_nested_key_needs_no_more_memory_than_its_path(self):
        path, size = self.path / "a.pt", 200_000
        nested = b"}" + text(b"k" * size) + b"q\x00" + b"}h\x00" * 119 + b"N" + b"s" * 120
        write_pickle(path, nested)
        child = self.start([PROGRAM, "--list", path])
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.assertIn("the paths of its values have more than", programs.output_of(child)[1])
        self.assertEqual(child.returncode, 1)
        self.assertLess(usage.ru_maxrss, 800_000)  # KiB; the libraries alone need half

    def test_elements_that_a_file_does_not_contain_are_not_visited(self):
        path, target = self.path / "a.pt", self.path / "b.safetensors"
        write_pickle(path, *repeated_tensor([2**20, 2**20], [0, 0]))
        self.assertEqual(self.succeed("--list", path)[0], "w: float32 [1048576, 1048576] 4398046511104 bytes")
        message = "have 4398046511104 bytes, but the file stores 4: strides or other tensors repeat"
        self.fail_with(1, message, "--list", path, "--values")
        self.fail_to_convert(message, path, target)
        self.fail_with(1, message, "--diff", path, "--with", path)
        write_pickle(path, *repeated_tensor([1000, 1000], [0, 0]))
        self.assertIn("min 0 max 0 mean 0", self.succeed("--list", path, "--values")[0])

    def test_errors_escape_control_characters(self):
        path = self.path / "a.pt"
        write_pickle(path, b"cos\n\x1b]0;title\x07system\n)R")
        self.fail_with(1, r'refers to the Python object "os.\x1b]0;title\x07system"', "--list", path)


class ConvertTest(ProgramTest):
    def test_a_conversion_can_be_reversed(self):
        first = self.file("a.safetensors", {"w": floats(1, 2), "model.b": integers(3)}, {"format": "pt"})
        middle, last = self.path / "b.pt", self.path / "c.safetensors"
        self.assertEqual(self.convert(first, middle), [f'"{middle}": 2 tensors, 1 other values'])
        self.assertEqual(self.convert(middle, last, "--mmap"),
                         [f'"{last}": 2 tensors, 1 other values as text in the metadata'])
        for other in (middle, last):
            self.expect_equal(first, other)
        self.assertIn('metadata.format: "pt"', self.succeed("--list", last))

    def test_replaces_only_with_force(self):
        first = self.file("a.safetensors", {"w": floats(1)})
        target = self.path / "b.pt"
        target.write_text("precious")
        self.fail_to_convert("already exists", first, target)
        self.assertEqual(target.read_text(), "precious")
        self.convert(first, target, "--force")
        self.expect_equal(first, target)
        # Converts a file in place.
        self.convert(first, first, "--force", "--mmap")
        self.expect_equal(first, target)

    def test_converts_a_part(self):
        first = self.file("a.safetensors", {"model.w": floats(1), "other": floats(2)}, {"a": "b"})
        target = self.path / "b.pt"
        self.convert(first, target, "--key", "model")
        self.assertEqual(self.succeed("--list", target)[0], "w: float32 [1] 4 bytes")

    def test_every_dtype_is_converted(self):
        first, other = self.path / "a.safetensors", self.path / "b.pt"
        write_safetensors(first, {dtype: (dtype, [2], bytes(range(2 * size))) for dtype, size in SIZES.items()
                                  if dtype != "BOOL"})
        self.convert(first, other)
        self.expect_equal(first, other)

    def test_a_name_that_a_format_does_not_support_is_an_error(self):
        first = self.file("c.safetensors", {"metadata": floats(1)}, {"a": "b"})
        self.fail_to_convert("Rename the tensor", first, self.path / "b.pt")
        self.assertFalse((self.path / "b.pt").exists())

    def test_an_unwritable_target_is_an_error(self):
        first = self.file("a.safetensors", {"w": floats(1)})
        self.fail_to_convert("/dev/null/b.pt", first, "/dev/null/b.pt")


class DiffTest(ProgramTest):
    def test_equal_files_have_no_differences(self):
        nan = float("nan")
        quiet = struct.unpack("<f", struct.pack("<I", 0x7fc00001))[0]
        a = self.file("a.safetensors", {"w": floats(nan, 0.0, 1), "e": floats()})
        b = self.file("b.safetensors", {"e": floats(), "w": floats(quiet, -0.0, 1)})
        self.expect_equal(a, b)
        self.expect_equal(a, b, "--mmap")

    def test_reports_each_difference(self):
        a = self.file("a.safetensors", {
            "dtype": floats(1), "shape": floats(1, 2), "value": floats(1, 2, 3), "a": floats(1)},
            {"same": "x", "text": "1"})
        b = self.file("b.safetensors", {
            "dtype": integers(2), "shape": floats(1), "value": floats(1, 2.5, 2), "b": floats()},
            {"same": "x", "text": "2"})
        self.assertEqual(self.differences(a, b), [
            f'only in "{a}": a: float32 [1] 4 bytes',
            "dtype: dtype float32 and int64; values differ by up to 1 in 1 of 1 elements",
            'metadata.text: "1" and "2"',
            "shape: shape [2] and [1]",
            "value: values differ by up to 1 in 2 of 3 elements",
            f'only in "{b}": b: float32 [0] 0 bytes',
            "6 differences"])

    def test_the_tolerance_allows_small_differences(self):
        a = self.file("a.safetensors", {"w": floats(1, 2)})
        b = self.file("b.safetensors", {"w": floats(1.5, 2)})
        self.expect_equal(a, b, "--tolerance", "0.5")
        self.assertEqual(self.differences(a, b, "--tolerance", "0.25")[-1], "1 difference")

    def test_nothing_tolerates_nan_or_infinity(self):
        inf, nan = float("inf"), float("nan")
        for left, right in ((nan, 1), (inf, 1), (inf, -inf), (inf, nan)):
            a = self.file("a.safetensors", {"w": floats(left)})
            b = self.file("b.safetensors", {"w": floats(right)})
            self.assertEqual(self.differences(a, b, "--tolerance", "1e300")[0],
                             "w: values differ by up to inf in 1 of 1 elements")

    def test_large_integers_are_compared_exactly(self):
        a = self.file("a.safetensors", {"w": integers(2**53, 2**63 - 1)})
        b = self.file("b.safetensors", {"w": integers(2**53 + 1, 2**63 - 1)})
        self.assertEqual(self.differences(a, b)[0], "w: values differ by up to 1 in 1 of 2 elements")


class ErrorTest(ProgramTest):
    def test_wrong_usage_exits_with_status_2(self):
        path = self.file("a.safetensors", {"w": floats(1)})
        for arguments, message in (
            ([], "0 of --list, --convert and --diff"),
            (["--list", path, "--diff", path, "--with", path], "2 of --list,"),
            (["--diff", path], "Name it with --with"),
            (["--convert", path], "Name it with --to"),
            (["--convert", path, "--to", "b.bin"], "must end with .pt or .safetensors"),
            (["--list", path, "--to", "b.pt"], "--to requires --convert"),
            (["--list", path, "--force"], "--force requires --convert"),
            (["--list", path, "--with", path], "--with requires --diff"),
            (["--list", path, "--tolerance", "1"], "--tolerance requires --diff"),
            (["--convert", path, "--to", "b.pt", "--values"], "--values requires --list"),
            (["--diff", path, "--with", path, "--tolerance", "-1"], "0 or more"),
            (["--lst", path], "--list"),
        ):
            with self.subTest(arguments=arguments):
                self.fail_with(2, message, *arguments)

    def test_help_lists_the_exit_statuses(self):
        self.assertIn("3 the files differ", " ".join(" ".join(self.succeed("--help")).split()))

    def test_missing_and_damaged_files_are_errors(self):
        whole = self.file("a.safetensors", {"w": floats(1, 2)})
        checkpoint = self.path / "a.pt"
        self.convert(whole, checkpoint)
        for name, data in (("cut.safetensors", whole.read_bytes()[:-1]),
                           ("cut.pt", checkpoint.read_bytes()[:-30]),
                           ("empty.pt", b""), ("text.pt", b"hello, world")):
            damaged = self.path / name
            damaged.write_bytes(data)
            for arguments in (["--list", damaged], ["--diff", whole, "--with", damaged],
                              ["--convert", damaged, "--to", self.path / "b.pt"]):
                with self.subTest(arguments=arguments):
                    self.fail_with(1, str(damaged), *arguments)
        for name in ("no.pt", "no.safetensors"):
            self.fail_with(1, "No such file", "--list", self.path / name)
        self.fail_with(1, "folder", "--list", self.path)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_output_that_cannot_be_written_is_an_error(self):
        path = self.file("a.safetensors", {"w": floats(1)})
        done = programs.run_on_full_disk([PROGRAM, "--list", path], "stdout")
        self.assertEqual(done.status, 1)
        self.assertIn("standard output", done.error)


@unittest.skipUnless(PYTHON, "set LINKBOY_PYTHON to the path of a Python that has torch")
class PythonTest(ProgramTest):
    CONTENTS = """{
        "model": OrderedDict([("w", torch.arange(6.).view(2, 3).t()), ("b", torch.ones(2).half())]),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1}]},
        "epoch": 3, "loss": 2.0, "name": "a\\nb", "none": None, "on": True, "empty": [],
        "pair": (1, 2), "flags": torch.tensor([True, False]), "z": torch.tensor([1 + 2j]),
        "wide": torch.ones(1).expand(3, 2**20)}"""

    @classmethod
    def setUpClass(cls):
        folder = programs.temporary_folder(cls.addClassCleanup)
        cls.python_file, cls.colliding_file = folder / "python.pt", folder / "colliding.pt"
        cls.python("from collections import OrderedDict\n"
                   f"torch.save({cls.CONTENTS}, {str(cls.python_file)!r})\n"
                   f'torch.save({{"a.b": torch.ones(1), "a": {{"b": 3}}}}, {str(cls.colliding_file)!r})')

    @staticmethod
    def python(program):
        return programs.run([PYTHON, "-W", "ignore", "-c", "import torch\n" + program], check=True).output

    def test_lists_every_kind_of_value(self):
        lines = self.succeed("--list", self.python_file)
        self.assertEqual(lines, [
            "model.w: float32 [3, 2] 24 bytes", "model.b: float16 [2] 4 bytes",
            "optimizer.state.0.step: float32 [] 4 bytes", "optimizer.groups.0.lr: 0.1",
            "epoch: 3", "loss: 2.0", r'name: "a\nb"', "none: None", "on: True", "empty: []",
            "pair.0: 1", "pair.1: 2", "flags: bool [2] 2 bytes", "z: complex64 [1] 8 bytes",
            "wide: float32 [3, 1048576] 12582912 bytes",
            "6 tensors, 3145740 elements, 12582954 bytes"])
        text = "\n".join(self.succeed("--list", self.python_file, "--values", "--mmap"))
        self.assertIn("min 0 max 5 mean 2.5 first [0, 3, 1, 4, 2, 5]", text)
        self.assertIn("min False max True mean 0.5 first [True, False]", text)
        self.assertIn("12582912 bytes min 1 max 1 mean 1 first", text)

    def test_pairs_of_4_bit_numbers_are_listed_and_compared_as_bytes(self):
        files = [self.path / "a.pt", self.path / "b.pt", self.path / "c.pt"]
        for number, file in enumerate(files[:2]):
            self.python(f"pairs = torch.tensor([{number}, 33], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)\n"
                        f"torch.save({{'pairs': pairs}}, {str(file)!r})")
        self.assertEqual(self.succeed("--list", files[0], "--values")[0],
                         "pairs: float4_e2m1fn_x2 [2] 2 bytes min 0 max 33 mean 16.5 first [0, 33]")
        self.assertIn("pairs: values differ by up to 1 in 1 of 2 elements", self.differences(files[0], files[1]))
        self.convert(files[0], files[2])
        self.expect_equal(files[0], files[2])

    def test_a_key_selects_a_part(self):
        for key, line in (("model", "w: float32 [3, 2] 24 bytes"), ("optimizer.state.0", "step: float32 [] 4 bytes")):
            self.assertEqual(self.succeed("--list", self.python_file, "--key", key)[0], line)
        for key, message in ("nothing", "it contains: model, optimizer, epoch"), ("epoch", "must be a dict"):
            self.fail_with(1, message, "--list", self.python_file, "--key", key)

    def test_converts_to_safetensors(self):
        target = self.path / "a.safetensors"
        self.assertEqual(self.convert(self.python_file, target),
                         [f'"{target}": 6 tensors, 9 other values as text in the metadata'])
        lines = self.succeed("--list", target)
        for line in ("model.w: float32 [3, 2] 24 bytes", 'metadata.epoch: "3"',
                     'metadata.loss: "2.0"', r'metadata.name: "a\nb"', 'metadata.none: "None"',
                     'metadata.optimizer.groups.0.lr: "0.1"'):
            self.assertIn(line, lines)
        self.expect_equal(self.python_file, target, "--key", "model")

    def test_python_reads_converted_files(self):
        target = self.path / "a.pt"
        self.convert(self.python_file, target)
        self.expect_equal(self.python_file, target)
        self.assertEqual(self.python(f"c = torch.load({str(target)!r}, weights_only=True)\n"
                                     "print(c['model']['w'].tolist(), c['epoch'], c['none'])"),
                         "[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] 3 None\n")

    def test_names_that_collide_are_refused_in_a_conversion(self):
        target = self.path / "a.safetensors"
        self.fail_to_convert('two values become "a.b"', self.colliding_file, target)
        self.assertFalse(target.exists())
        self.assertEqual(len(self.succeed("--list", self.colliding_file)), 3)
        self.expect_equal(self.colliding_file, self.colliding_file)


if __name__ == "__main__":
    PROGRAM = programs.path_argument()
    unittest_main.main()
