// SPDX-License-Identifier: Apache-2.0

package shaper

// The object holds no path of the machine that it was built on, so that it comes out the same everywhere.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../..=." departure ../../bpf/departure.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
