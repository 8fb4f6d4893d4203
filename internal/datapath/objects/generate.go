// SPDX-License-Identifier: Apache-2.0

package objects

// The objects contain no path of the build machine, so that they are reproducible. Programs for packets need tcx, hence
// Linux 6.6, which has version 4 of the instruction set; programs for sockets need Linux 6.5, which has version 3.

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-mcpu=v4 -O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../../..=." -type metric -type addr -type tuple -type drop_reason -type ct_flag -type ct_state -type endpoint_flag -type remote_flag -type device_role -type sender_flag -type ep_path -type attach_point -type event_kind -type event -type service_flag -type backend_state -type backend_flag -type owner -type ct_config -type id_alloc tc ../../../bpf/tc.bpf.c -- -I../../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../../..=." -type namespace_flag -type sk_scope -type sk_service -type sk_udp_backends -type sk_revnat_key -type addr_port -no-global-types socklb ../../../bpf/socklb.bpf.c -- -I../../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run digest_generate.go
