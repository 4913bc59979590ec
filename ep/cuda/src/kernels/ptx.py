"""Compiles the kernels to PTX, as `make ptx` calls it: no GPU, no driver and no CUDA toolkit is needed.

usage: ptx.py OUT

OUT is the folder to write to. NVRTC, and the assembler that tries each result for each of ARCHITECTURES, are those of the
virtual environment that runs this (nvrtc.txt, ptxas.txt). The first lines of a result say what it was made from and what came
out; a test compares them with the sources and with the lines that follow, so that nobody forgets to run this or edits a result.
"""

import ctypes
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
MODULES = ["elementwise", "move", "reduce", "matmul", "random", "arrange", "window", "network", "sort"]
# The lowest that has `__grid_constant__` and threads of a warp that go on by themselves.
OPTIONS = ["--gpu-architecture=compute_70", "--std=c++17", f"--include-path={HERE}",
           "--diag-suppress=186"]  # `y < 0` of an unsigned y
# A multiplication and an addition stay two rounded steps: so fused steps have the bits of steps that run one by one.
# Functions are kept that no kernel of the module calls.
OPTIONS_OF = {"elementwise": ["--fmad=false", "--relocatable-device-code=true"], "arrange": ["--fmad=false"]}
ARCHITECTURES = ["sm_70", "sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]


def fnv(parts):
    """FNV-1a, 64 bits, over pieces of bytes, one behind the other."""
    value = 0xCBF29CE484222325
    for part in parts:
        for byte in part:
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def with_headers(name):
    """The names of a file and of all headers that it includes."""
    included = [line.split('"')[1] for line in (HERE / name).read_text().splitlines() if line.startswith("#include")]
    return {name}.union(*(with_headers(header) for header in included))


def fingerprint(module):
    """Of what the PTX of a module is made from: file by file, in the order of their names."""
    return fnv((HERE / name).read_bytes() for name in sorted(with_headers(f"{module}.cu") | {"nvrtc.txt", "ptx.py"}))


def installed(path):
    """A file of a package of NVIDIA's."""
    for found in pathlib.Path(sys.prefix).glob(f"lib/python*/site-packages/nvidia/{path}"):
        return found
    raise SystemExit(f"{path} is not in {sys.prefix}: call `make ptx`")


class Nvrtc:
    """The calls of NVRTC that one compilation needs."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name}: {self.library.nvrtcGetErrorString(code).decode()}")

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, text)
        return text.value.decode()

    def ptx(self, name, source, options):
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None)
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), encoded)
        log = self.text(program, "ProgramLog")
        # A warning is no success either.
        if failed or log.strip():
            raise SystemExit(f"{name}:\n{log}")
        ptx = self.text(program, "PTX")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return ptx


def main():
    out = pathlib.Path(sys.argv[1])
    nvrtc, ptxas = Nvrtc(installed("cuda_nvrtc/lib/libnvrtc.so.12")), installed("cuda_nvcc/bin/ptxas")
    out.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        options = OPTIONS + OPTIONS_OF.get(module, [])
        ptx = nvrtc.ptx(f"{module}.cu", (HERE / f"{module}.cu").read_bytes(), options)
        # Blank lines and comments say nothing, and nothing reads the variables of NVRTC's own: what is left out is not shipped.
        lines = [line for line in ptx.splitlines()
                 if line.strip() and not line.lstrip().startswith("//") and "nv6target" not in line]
        body = "\n".join(lines) + "\n"
        header = ["// Made by `make ptx` from kernels/: do not edit.", f"// sources: {fingerprint(module)}",
                  f"// compiler: NVRTC {nvrtc.version()}", f"// result: {fnv([body.encode()])}"]
        path = out / f"{module}.ptx"
        path.write_text("\n".join(header) + "\n" + body)
        for architecture in ARCHITECTURES:
            subprocess.run([ptxas, f"--gpu-name={architecture}", "--compile-only", "--output-file=/dev/null", path], check=True)
        functions = [line for line in lines if line.startswith(".visible")]
        print(f"{path}: {path.stat().st_size} bytes, {len(functions)} kernels or functions")


if __name__ == "__main__":
    main()
