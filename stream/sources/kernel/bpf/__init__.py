"""The program that runs in the kernel: its source, how it is built, and what was built from it.

`python -m stream.sources.kernel.bpf.build` makes the six `.lskel` files anew, where clang, llvm,
bpftool and the headers of libbpf are installed. At run time none of them is needed.
"""
