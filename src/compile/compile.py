"""Compiles or exports a recorded program of linkboy::compile. The arguments are FOLDER CPU.

FOLDER has program.json, the text of a `Program`. Without model.json, it receives step.so, and step.json if the library
calls operators that it does not contain; neither weights nor data are read. With model.json, it receives "exported":
a model in one of three formats, with the weights in weights.pt. The code runs on each CPU of the level CPU (x86-64-v3).
If program.json names an "export_format" instead of a program, only what such an export needs is checked.
Errors are one line on stderr, after the exit status 3 for a program that cannot be compiled, 4 for a wrong LibTorch,
5 for a missing compiler, and 6 for a missing package of Python.
"""

import json
import operator
import os
import pathlib
import re
import shutil
import signal
import sys
import time

UNSUPPORTED, WRONG_TORCH, NO_COMPILER, NO_PACKAGE = 3, 4, 5, 6


def fail(status, text):
    print(" ".join(str(text).split()), file=sys.stderr)
    sys.exit(status)


PARENT = os.getppid()


def end(*_):
    """Removes FOLDER if the program that waits for the result was killed. Otherwise, it does so itself."""
    if os.getppid() != PARENT:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)  # the C++ compiler
        for _ in range(20):
            if not os.path.exists(sys.argv[1]):
                break
            shutil.rmtree(sys.argv[1], ignore_errors=True)
            time.sleep(0.05)
        os.killpg(0, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


signal.signal(signal.SIGTERM, end)

try:
    import torch
except ImportError as error:
    fail(WRONG_TORCH, f"{sys.executable} cannot import torch: {error}")

aten = torch.ops.aten
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
          "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
          "ComplexFloat": "complex64", "ComplexDouble": "complex128"}
MEMORY_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
# Max pooling is slower as code of Inductor, and in ATen with other strides than channels-last.
POOLING = ["max_pool2d_with_indices", "max_pool2d_with_indices_backward"]
SETTINGS = {
    "aot_inductor.precompile_headers": False,  # takes longer than it saves for one library
    "cpp.dynamic_threads": True,
    "cpp.vec_isa_ok": True,  # without compiling a program for each set of instructions
}


def dtype_of(name):
    return getattr(torch, DTYPES[name])


class GraphBuilder:
    """Makes the fx graph of a program. With `weights`, all inputs but the batch are parameters and buffers of its module."""

    def __init__(self, program, names=None, weights=None):
        self.program = program
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values = {}
        self.sizes = {}
        self.examples = []
        for index, item in enumerate(program["inputs"]):
            name = names[index] if names else f"input_{index}"
            if weights is not None and item["kind"] != "batch":
                attribute = f"{re.sub('[^0-9A-Za-z]+', '_', name)}_{index}"  # a name that Python accepts
                self.add_weight("w_" + attribute, weights[name])
                self.values[item["id"]] = self.graph.get_attr("w_" + attribute)
            else:
                self.values[item["id"]] = self.graph.placeholder(name)
                self.examples.append(item)

    def add_weight(self, name, value):
        if value.is_floating_point():
            self.root.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        else:
            self.root.register_buffer(name, value)

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
            if not values[5]:  # in evaluation
                overload, values = aten._native_batch_norm_legit_no_training.default, values[:5] + values[6:]
            elif values[3] is None:
                overload, values = aten._native_batch_norm_legit.no_stats, values[:3] + values[5:]
        positional, named = [], {}
        for argument, value in zip(overload._schema.arguments, values):
            if argument.N and isinstance(value, list) and len(value) == 1:
                value = value * argument.N  # C++ may give one number for all dimensions; ONNX needs each
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

    def build(self, is_tuple=True):
        for call in self.program["calls"]:
            self.add_call(call)
        outputs = tuple(self.values[output] for output in self.program["outputs"])
        self.graph.output(outputs if is_tuple else outputs[0])
        self.graph.eliminate_dead_code()  # calls in place stay, which their schemas tell
        self.graph.lint()
        return torch.fx.GraphModule(self.root, self.graph)


def example_of(item):
    """A tensor like the recorded one, without its values."""
    shape, strides = item["shape"], item["strides"]
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if all(shape) else 0
    storage = torch.zeros(length, dtype=dtype_of(item["dtype"]), device=item["device"])
    return storage.as_strided(shape, strides)


def export(program, model=None, weights=None):
    """Returns the ExportedProgram. A step has at least two samples, because a size of 1 would be a constant."""
    builder = GraphBuilder(program, model and model["names"], weights)
    module = builder.build(is_tuple=model is None or model["is_tuple"])
    examples = tuple(example_of(item) for item in builder.examples)
    dynamic = None
    if program["most_samples"] > 1:
        batch = torch.export.Dim("batch", min=1 if model else 2, max=program["most_samples"])
        dynamic = tuple({0: batch} if item["kind"] == "batch" and item["has_samples"] else None
                        for item in builder.examples)
    with torch.no_grad():
        return torch.export.export(module, examples, dynamic_shapes=dynamic, strict=False)


def leave_to_aten(names, constraint=None):
    from torch._inductor import lowering
    from torch._inductor.decomposition import decompositions
    for name in names:
        packet = getattr(aten, name)
        for overload in packet.overloads():
            decompositions.pop(getattr(packet, overload), None)
            lowering.lowerings.pop(getattr(packet, overload), None)
            lowering.make_fallback(getattr(packet, overload), constraint, warn=False)


def channels_last(node, *arguments, **named):
    """The constraint of calls whose images must be channels-last."""
    from torch._inductor import lowering
    from torch._inductor.ir import ExternKernel, IRNode
    if len(arguments[0].get_size()) != 4:
        return lowering.constrain_to_fx_strides(node, *arguments, **named)
    return [ExternKernel.require_channels_last(each) if isinstance(each, IRNode) else each
            for each in arguments], named


def add_biases_in_kernels():
    """Lets the kernel after a matrix product add the bias, as on a GPU, instead of copying it before the product."""
    from torch._inductor.fx_passes import post_grad
    post_grad.is_gpu = lambda _: True


def is_onednn_faster():
    """Whether oneDNN's matrix products are clearly faster than ATen's: MKL does not use AVX512 on CPUs of AMD."""
    if not torch.backends.mkldnn.is_available():
        return False
    x, weight = torch.ones(256, 512), torch.ones(512, 512)

    def time_of(product):
        times = []
        for _ in range(10):
            start = time.perf_counter()
            product()
            times.append(time.perf_counter() - start)
        return min(times)

    multiply = torch.ops.mkldnn._linear_pointwise
    return time_of(lambda: multiply(x, weight, None, "none", [], "")) < 0.75 * time_of(lambda: x @ weight.t())


def multiply_with_onednn():
    """Leaves large matrix products to oneDNN. Small ones take longer there."""
    from torch._inductor import ir, lowering, mkldnn_ir
    from torch._inductor.virtualized import V

    class Product(mkldnn_ir.LinearUnary):
        @classmethod
        def create(cls, x, weight, bias):
            # Unlike LinearUnary, with any strides of the weight.
            inputs = [cls.require_contiguous(cls.realize_input(x)), cls.realize_input(weight)]
            constants = ["none", [-1], ""]
            if bias is None:
                constants.insert(0, None)
            else:
                inputs.append(cls.require_contiguous(cls.realize_input(bias)))
            layout = ir.FixedLayout(x.get_device(), x.get_dtype(), [x.get_size()[0], weight.get_size()[0]])
            return mkldnn_ir._create_output_node(cls(layout, inputs, constants))

    def is_large(a, b):
        rows, inner = a.get_size()
        num_products = rows * inner * b.get_size()[1]
        typical = 8 if getattr(num_products, "free_symbols", None) else 1  # times the samples of the example
        return typical * V.graph.sizevars.size_hint(num_products, fallback=0) >= 2e6

    def lower(overload, product):
        otherwise = lowering.lowerings[overload]

        def lowered(*arguments, **named):
            result = None if named else product(*arguments)
            return otherwise(*arguments, **named) if result is None else ir.TensorBox.create(result)

        lowering.lowerings[overload] = lowered

    def multiply(a, b, bias=None):
        if a.get_dtype() == torch.float32 and is_large(a, b):
            return Product.create(a, lowering.permute(b, [1, 0]), bias)

    lower(aten.mm.default, multiply)
    lower(aten.addmm.default, lambda bias, a, b: multiply(a, b, bias) if len(bias.get_size()) == 1 else None)


def compile_for(cpu):
    """Makes the code run on each CPU of a level. TorchInductor would use all instructions of this one."""
    from torch._inductor import cpp_builder, cpu_vec_isa
    os.environ.pop("ATEN_CPU_CAPABILITY", None)
    if cpu not in ("x86-64", "x86-64-v3", "x86-64-v4"):
        return
    flags_of = cpp_builder._get_optimization_cflags

    def flags(*arguments, **options):
        compiler, linker = flags_of(*arguments, **options)
        return [f"march={cpu}" if flag == "march=native" else flag for flag in compiler], linker

    cpp_builder._get_optimization_cflags = flags
    # AVX512 without the parts of it that a CPU may lack.
    isa = {"x86-64": None, "x86-64-v3": cpu_vec_isa.VecAVX2(), "x86-64-v4": cpu_vec_isa.VecAVX512()}[cpu]
    cpu_vec_isa.VecAVX512.build_arch_flags = cpu_vec_isa.VecISA.build_arch_flags
    cpu_vec_isa.valid_vec_isa_list = lambda: [isa] if isa else []


def prepare_compiler(cpu):
    compile_for(cpu)
    leave_to_aten(POOLING, channels_last)
    add_biases_in_kernels()
    if is_onednn_faster():
        multiply_with_onednn()


def compile_step(program, folder, cpu):
    exported = export(program)
    prepare_compiler(cpu)
    leave_to_aten(["bernoulli"])  # a kernel of Inductor may read its numbers before they are drawn
    settings = {
        **SETTINGS,
        "aot_inductor.output_path": os.path.join(folder, "step.so"),
        "fallback_random": True,  # ATen's generator, in the order of the calls: the numbers of an eager step
        "layout_optimization": True,  # channels-last convolutions
    }
    torch._inductor.aot_compile(exported.module(), exported.example_inputs[0], options=settings)
    for operators in pathlib.Path(folder).glob("*.wrapper.json"):  # those that the library calls by name
        operators.rename(os.path.join(folder, "step.json"))


def export_model(program, folder, cpu):
    model = json.loads(pathlib.Path(folder, "model.json").read_text(encoding="utf-8"))
    check_tools(model["format"])
    weights = torch.load(os.path.join(folder, "weights.pt"), weights_only=True)
    exported = export(program, model, weights)
    target = os.path.join(folder, "exported")
    if model["format"] == "exported_program":
        torch.export.save(exported, target + ".pt2")
    elif model["format"] == "onnx":
        save_onnx(exported, model, target)
    else:
        prepare_compiler(cpu)
        torch._inductor.aoti_compile_and_package(exported, package_path=target + ".pt2", inductor_configs={
            **SETTINGS,
            "aot_inductor.metadata": {"linkboy": json.dumps({"cpu": cpu, **model["metadata"]})},
            "cpp.weight_prepack": False,  # ATen's convolutions with prepared weights copy images of one channel twice
            "freezing": True,  # computes once what depends only on weights
        })


def save_onnx(exported, model, target):
    inputs = [item["name"] for item in model["metadata"]["inputs"]]
    onnx = torch.onnx.export(exported, dynamo=True, input_names=inputs, output_names=model["output_names"],
                             verbose=False)
    onnx.save(target + ".onnx", external_data=False)  # an error if ONNX cannot have so many weights in a file


def check_tools(export_format):
    """Fails if what an export needs is missing."""
    if export_format == "onnx":
        try:
            import onnxscript  # noqa: F401
        except ModuleNotFoundError as error:
            fail(NO_PACKAGE, error.name)
    if export_format == "package":
        from torch._inductor import cpp_builder
        cpp_builder.get_cpp_compiler()


def main(folder, cpu):
    program = json.loads(pathlib.Path(folder, "program.json").read_text(encoding="utf-8"))
    version = torch.__version__.split("+")[0]
    if version != program["torch_version"]:
        fail(WRONG_TORCH, f"{sys.executable} has torch {version}; the program uses LibTorch {program['torch_version']}")
    try:
        if "export_format" in program:
            return check_tools(program["export_format"])
        with torch.no_grad():
            if os.path.exists(os.path.join(folder, "model.json")):
                export_model(program, folder, cpu)
            else:
                compile_step(program, folder, cpu)
    except Exception as error:  # noqa: BLE001: the message is all that the program can use
        if "InvalidCxxCompiler" in repr(error):
            fail(NO_COMPILER, error)
        import traceback
        traceback.print_exc(file=sys.stdout)
        fail(UNSUPPORTED, f"{type(error).__name__}: {error}")


main(*sys.argv[1:])
