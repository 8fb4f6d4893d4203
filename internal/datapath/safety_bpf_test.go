// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// pop detaches whatever program is the first at a hook, which needs no descriptor of it.
func (s *safety) pop(at ebpf.AttachType) func(*testing.T) error {
	return func(*testing.T) error {
		const before = 8 // BPF_F_BEFORE
		// The beginning of union bpf_attr, as for BPF_PROG_DETACH.
		attr := struct{ ifindex, program, kind, flags, replace, relative, revision, revisionHigh uint32 }{
			ifindex: uint32(s.device.Index), kind: uint32(at), flags: before,
		}
		return s.pod.Do(func() error {
			_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_DETACH, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			if errno != 0 {
				return errno
			}
			return nil
		})
	}
}

// linkByID opens the link by the number that a query tells, and detaches it. To open it takes CAP_SYS_ADMIN in the first
// user namespace, which is dropped here.
func (s *safety) linkByID(t *testing.T) error {
	var id link.ID
	err := s.pod.Do(func() error {
		result, err := link.QueryPrograms(link.QueryOptions{Target: s.device.Index, Attach: ebpf.AttachTCXEgress})
		if err == nil && len(result.Programs) > 0 {
			id, _ = result.Programs[0].LinkID()
		}
		return err
	})
	if err != nil || id == 0 {
		t.Fatalf("link %d: %v", id, err)
	}
	done := make(chan error)
	go func() {
		// The thread ends with the goroutine, and its lack of capabilities with it.
		runtime.LockOSThread()
		done <- detachUnprivileged(id)
	}()
	return <-done
}

func detachUnprivileged(id link.ID) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return err
	}
	l, err := link.NewFromID(id)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Detach()
}
