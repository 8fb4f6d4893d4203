// SPDX-License-Identifier: Apache-2.0

package install

// Without a C library, as the client has to start quickly; the machine that compiles need not be of the architecture.

//go:generate clang-19 --target=x86_64-linux-gnu -o client_amd64 -O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -nostdlib -static -s -fuse-ld=lld-19 -Wl,--build-id=none ../../../cni/client.c
//go:generate clang-19 --target=aarch64-linux-gnu -o client_arm64 -O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -nostdlib -static -s -fuse-ld=lld-19 -Wl,--build-id=none ../../../cni/client.c
