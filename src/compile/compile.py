"""Compiles a recorded program of linkboy::compile to a shared library: compile.py PROGRAM FOLDER.

PROGRAM is the JSON that `Program::to_json` writes. FOLDER receives step.so, and step.json if the library calls
operators that it does not contain. Neither weights nor data are read: the program has only shapes and calls.
Errors are one line on stderr, after the exit status 3 for a program that cannot be compiled, 4 for a wrong LibTorch, and
5 for a missing compiler.
"""

import json
import operator
import os
import pathlib
import sys

UNSUPPORTED, WRONG_TORCH, NO_COMPILER = 3, 4, 5


def fail(status, text):
    print(" ".join(str(text).split()), file=sys.stderr)
    sys.exit(status)


try:
    import torch
except ImportError as error:
    fail(WRONG_TORCH, f"{sys.executable} cannot import torch: {error}")

aten = torch.ops.aten
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
          "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
          "ComplexFloat": "complex64", "ComplexDouble": "complex128"}
MEMORY_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
# Max pooling is slower as code of Inductor, which also lets kernels read the numbers of bernoulli before they are drawn.
LEFT_TO_ATEN = ["max_pool2d_with_indices", "max_pool2d_with_indices_backward", "bernoulli"]


def dtype_of(name):
    return getattr(torch, DTYPES[name])


class GraphBuilder:
    """Makes the fx graph of a program."""

    def __init__(self, program):
        self.program = program
        self.graph = torch.fx.Graph()
        self.values = {}
        self.sizes = {}
        for index, item in enumerate(program["inputs"]):
            self.values[item["id"]] = self.graph.placeholder(f"input_{index}")

    def batch_size(self):
        if "batch" not in self.sizes:
            first = next(item for item in self.program["inputs"] if item["kind"] == "batch")
            self.sizes["batch"] = self.graph.call_function(aten.sym_size.int, (self.values[first["id"]], 0))
        return self.sizes["batch"]

    def size(self, factor, offset):
        """factor * batch size + offset."""
        if (factor, offset) not in self.sizes:
            size = self.batch_size()
            if factor != 1:
                size = self.graph.call_function(operator.mul, (size, factor))
            if offset != 0:
                size = self.graph.call_function(operator.add, (size, offset))
            self.sizes[factor, offset] = size
        return self.sizes[factor, offset]

    def decode(self, value):
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return self.values[content]
        if kind == "size":
            return self.size(*content)
        return {"dtype": dtype_of, "device": torch.device, "float": float, "layout": lambda _: torch.strided,
                "memory_format": lambda index: MEMORY_FORMATS[index]}[kind](content)

    def add_call(self, call):
        namespace, name = call["operator"].split("::")
        overload = getattr(getattr(getattr(torch.ops, namespace), name), call["overload"] or "default")
        values = [self.decode(argument) for argument in call["arguments"]]
        if overload is aten.native_batch_norm.default:
            # Its schema does not say that it writes the running statistics.
            overload = aten._native_batch_norm_legit.default
            if values[3] is None:
                overload, values = aten._native_batch_norm_legit.no_stats, values[:3] + values[5:]
        positional, named = [], {}
        for argument, value in zip(overload._schema.arguments, values):
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        node = self.graph.call_function(overload, tuple(positional), named)
        results = call["results"]
        if len(results) == 1 and not isinstance(results[0], list):
            if results[0] is not None:
                self.values[results[0]] = node
            return
        for index, result in enumerate(results[0] if len(results) == 1 else results):
            if result is not None:
                self.values[result] = self.graph.call_function(operator.getitem, (node, index))

    def build(self):
        for call in self.program["calls"]:
            self.add_call(call)
        self.graph.output(tuple(self.values[output] for output in self.program["outputs"]))
        self.graph.eliminate_dead_code()  # calls in place stay, which their schemas tell
        self.graph.lint()
        return torch.fx.GraphModule(torch.nn.Module(), self.graph)


def example_of(item):
    """A tensor like the recorded one, without its values."""
    shape, strides = item["shape"], item["strides"]
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if all(shape) else 0
    storage = torch.zeros(length, dtype=dtype_of(item["dtype"]), device=item["device"])
    return storage.as_strided(shape, strides)


def export(program):
    module = GraphBuilder(program).build()
    examples = tuple(example_of(item) for item in program["inputs"])
    dynamic = None
    if program["most_samples"] > 1:
        batch = torch.export.Dim("batch", min=2, max=program["most_samples"])
        dynamic = tuple({0: batch} if item["kind"] == "batch" and item["has_samples"] else None
                        for item in program["inputs"])
    with torch.no_grad():
        return torch.export.export(module, examples, dynamic_shapes=dynamic, strict=False)


def leave_to_aten(names):
    from torch._inductor import lowering
    from torch._inductor.decomposition import decompositions
    for name in names:
        packet = getattr(aten, name)
        for overload in packet.overloads():
            decompositions.pop(getattr(packet, overload), None)
            lowering.lowerings.pop(getattr(packet, overload), None)
            lowering.make_fallback(getattr(packet, overload), warn=False)


def settings(folder):
    return {
        "aot_inductor.output_path": os.path.join(folder, "step.so"),
        "aot_inductor.precompile_headers": False,  # takes longer than it saves for one library
        "cpp.dynamic_threads": True,
        "fallback_random": True,  # ATen's generator, in the order of the calls: the numbers of an eager step
        "cpp.vec_isa_ok": True,  # without compiling a program for each set of instructions
        "layout_optimization": False,  # it would make convolutions channels-last, as for inference
    }


def main(program_path, folder):
    with open(program_path, encoding="utf-8") as file:
        program = json.load(file)
    version = torch.__version__.split("+")[0]
    if version != program["torch_version"]:
        fail(WRONG_TORCH, f"{sys.executable} has torch {version}; the program uses LibTorch {program['torch_version']}")
    try:
        exported = export(program)
        leave_to_aten(LEFT_TO_ATEN)
        with torch.no_grad():
            torch._inductor.aot_compile(exported.module(), exported.example_inputs[0], options=settings(folder))
        for operators in pathlib.Path(folder).glob("*.wrapper.json"):  # those that the library calls by name
            operators.rename(os.path.join(folder, "step.json"))
    except Exception as error:  # noqa: BLE001: the message is all that the program can use
        if "InvalidCxxCompiler" in str(error):
            fail(NO_COMPILER, error)
        import traceback
        traceback.print_exc(file=sys.stdout)
        fail(UNSUPPORTED, f"{type(error).__name__}: {error}")


main(*sys.argv[1:])
