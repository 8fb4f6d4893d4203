// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// detach detaches the program of a link that stays pinned, as `bpftool link detach`
// does.
func detach(pattern string) func(*fixture, *pod) {
	return func(f *fixture, _ *pod) {
		f.t.Helper()
		pins, err := filepath.Glob(filepath.Join(f.plugin.BPFRoot, "v*/links", pattern))
		f.must(err)
		if len(pins) != 1 {
			f.t.Fatalf("pinned are %q", pins)
		}
		path, err := unix.BytePtrFromString(pins[0])
		f.must(err)
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(path)
		get := struct { // union bpf_attr, <linux/bpf.h>
			path      uint64
			fd, flags uint32
		}{path: uint64(uintptr(unsafe.Pointer(path)))}
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET, uintptr(unsafe.Pointer(&get)), unsafe.Sizeof(get))
		if errno != 0 {
			f.t.Fatal(errno)
		}
		defer unix.Close(int(fd))
		link := uint32(fd)
		if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_DETACH, uintptr(unsafe.Pointer(&link)), unsafe.Sizeof(link)); errno != 0 {
			f.t.Fatal(errno)
		}
	}
}
