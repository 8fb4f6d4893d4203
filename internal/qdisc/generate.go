// SPDX-License-Identifier: Apache-2.0

package qdisc

// The object contains no path of the build machine, so that it is reproducible.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../..=." edt ../../bpf/edt.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
