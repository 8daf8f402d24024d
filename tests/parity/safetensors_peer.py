"""The Python side of safetensors_test.cpp: reads files of linkboy and writes files for it.

Usage: safetensors_peer.py read FILE | write FOLDER; raises an exception on failure. Needs safetensors 0.8.
"""

import sys

import safetensors
import torch

# By their C++ names.
DTYPES = {
    "UInt64": torch.uint64, "Long": torch.int64, "Double": torch.float64,
    "ComplexFloat": torch.complex64, "Float": torch.float32, "UInt32": torch.uint32,
    "Int": torch.int32, "BFloat16": torch.bfloat16, "Half": torch.float16,
    "UInt16": torch.uint16, "Short": torch.int16, "Float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "Float8_e4m3fnuz": torch.float8_e4m3fnuz, "Float8_e8m0fnu": torch.float8_e8m0fnu,
    "Float8_e4m3fn": torch.float8_e4m3fn, "Float8_e5m2": torch.float8_e5m2, "Char": torch.int8,
    "Byte": torch.uint8, "Bool": torch.bool,
}


def pattern(dtype):
    """Returns 2 x 3 elements with the bytes 0, 1, 2 and so on (bool: alternating 0 and 1)."""
    data = torch.arange(6 * dtype.itemsize, dtype=torch.uint8)
    return (data % 2 if dtype == torch.bool else data).view(dtype).view(2, 3)


def every_dtype():
    return {name: pattern(dtype) for name, dtype in DTYPES.items()}


def specs(tensors):
    """Returns the specs that safetensors.torch makes with numpy, which scripts/setup does not install."""
    return {name: safetensors.TensorSpec(dtype=str(tensor.dtype).removeprefix("torch."),
                                         shape=list(tensor.shape), data_ptr=tensor.data_ptr(),
                                         data_len=tensor.nbytes)
            for name, tensor in tensors.items()}


def read(path):
    """Checks the values that the test wrote, and that the file is byte-identical to Python's."""
    metadata = {"format": "a \"b\"\n\x01\u00fc"}
    expected = every_dtype()
    expected["gr\u00fcn \"x\"\n"] = torch.arange(6.0).view(2, 3).t().contiguous()
    expected["scalar"] = torch.tensor(2.5)
    expected["empty"] = torch.zeros(0, 3)
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == metadata, file.metadata()
        assert sorted(file.keys()) == sorted(expected), file.keys()
        for name, tensor in expected.items():
            actual = file.get_tensor(name)
            assert (actual.dtype, actual.shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(actual.reshape(-1).view(torch.uint8),
                               tensor.reshape(-1).view(torch.uint8)), name
    with open(path, "rb") as file:
        assert file.read() == safetensors.serialize(specs(expected), metadata)


def write(folder):
    """Writes the files that the test reads."""
    tensors = every_dtype()
    tensors["gr\u00fcn"] = torch.arange(6.0).view(2, 3)
    tensors["scalar"] = torch.tensor(2.5, dtype=torch.float64)
    tensors["empty"] = torch.zeros(0, 3)
    safetensors.serialize_file(specs(tensors), f"{folder}/python.safetensors",
                               {"format": "pt", "a": "1"})
    safetensors.serialize_file({}, f"{folder}/none.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"read": read, "write": write}[sys.argv[1]](sys.argv[2])
