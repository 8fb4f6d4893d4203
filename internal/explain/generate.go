// SPDX-License-Identifier: Apache-2.0

package explain

// The object contains no path of the build machine, so that it is reproducible.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -ffile-prefix-map=../..=." -type event -type kind explain ../../bpf/explain.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
