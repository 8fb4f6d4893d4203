// SPDX-License-Identifier: Apache-2.0

package datapath

// The object holds no path of the machine that it was built on, so that it comes out the same everywhere.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../..=." -type metric -type addr -type tuple -type connection_flag -type endpoint_flag -type entrance -type side -type service_flag mustang ../../bpf/mustang.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../..=." -type namespace_flag -type socket -type talk -type end -no-global-types sock ../../bpf/sock.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run digest_generate.go
