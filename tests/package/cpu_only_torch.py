"""Makes a CPU-only LibTorch from one with CUDA, to test builds with it.

    cpu_only_torch.py FOLDER_OF_TORCHCONFIG TARGET    makes TARGET/torch/share/cmake/Torch and the files that it needs

The CPU's libraries and headers are links to the given ones. The headers and libraries for CUDA, and their mentions in
the CMake files, are omitted.
"""

import pathlib
import re
import shutil
import subprocess
import sys

CUDA_TARGETS = "c10_cuda", "torch_cuda", "torch_cuda_library", "torch_nvshmem"
CUDA_HEADERS = "ATen/cuda", "ATen/cudnn", "c10/cuda"
LIBRARIES = "libc10.so", "libtorch_cpu.so", "libgomp.so.1", "libtorch_global_deps.so"


def link_headers(source, target, left_out):
    """Links all files of a folder except `left_out`, which are relative paths."""
    target.mkdir(parents=True)
    for entry in source.iterdir():
        inside = [path[len(entry.name) + 1:] for path in left_out if path.startswith(entry.name + "/")]
        if inside:
            link_headers(entry, target / entry.name, inside)
        elif entry.name not in left_out:
            (target / entry.name).symlink_to(entry)


def edit(path, *changes):
    text = path.read_text()
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text, flags=re.DOTALL)
        if count == 0:
            sys.exit(f"{path} has nothing that matches {pattern}: this script does not fit that LibTorch")
    path.write_text(text)


def main():
    given = pathlib.Path(sys.argv[1]).resolve().parents[2]
    target = pathlib.Path(sys.argv[2]).resolve() / "torch"
    link_headers(given / "include", target / "include", CUDA_HEADERS)
    (target / "lib").mkdir()
    for library in LIBRARIES:
        if (given / "lib" / library).exists():
            (target / "lib" / library).symlink_to(given / "lib" / library)
    # libtorch_cpu.so of a CUDA build searches for its libraries next to its folder.
    (target.parent / "nvidia").symlink_to(given.parent / "nvidia")
    subprocess.run(["c++", "-shared", "-x", "c++", "/dev/null", "-o", target / "lib/libtorch.so",
                    "-Wl,--no-as-needed", f"-L{target}/lib", "-ltorch_cpu", "-lc10",
                    "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"], check=True)

    shutil.copytree(given / "share/cmake", target / "share/cmake")
    edit(target / "share/cmake/Torch/TorchConfig.cmake",
         (r"if\(ON\)(\s+if\(MSVC\)\s+find_library\(CAFFE2_NVRTC)", r"if(OFF)\1"))
    folder = target / "share/cmake/Caffe2"
    edit(folder / "Caffe2Config.cmake", (r"if\(ON\)(\s+# The file public/cuda\.cmake)", r"if(OFF)\1"))
    names = "|".join(CUDA_TARGETS)
    edit(folder / "Caffe2Targets.cmake",
         (rf"# Create imported target (?:{names})\n.*?(?=# Create imported|# Load information)", ""),
         (r";torch_cuda_library", ""),
         (rf"(?<= )(?:{names})(?=[ )])", ""))
    edit(folder / "Caffe2Targets-release.cmake",
         (rf'# Import target "(?:{names})" for.*?(?=# Import target|# Commands beyond)', ""))


if __name__ == "__main__":
    main()
