// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// TestPolicyHoldsForRoot has root in one pod send to another pod, whose policy allows nobody, past the programs of its own device:
// nothing arrives. Without the policy all does. The source guard, which would drop most of it first, is off.
func TestPolicyHoldsForRoot(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2, ipvlan-l3, ipvlan-l3s", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		f.guard(t, false)
		for _, family := range [][2]string{{podA4, podB4}, {podA6, podB6}} {
			victim := f.listen(t, family[0])
			own := netip.MustParseAddr(family[1])
			f.open(t, victim, own)
			for _, way := range f.ways(t) {
				t.Run(family[0]+" "+way.name, func(t *testing.T) {
					f.isRefused(t, victim, own, func(frame []byte) { f.send(t, frame, way) })
				})
			}
			t.Run(family[0]+" by AF_XDP", func(t *testing.T) {
				f.getsNothingByXDP(t, victim, own)
			})
		}
	})
}

// open waits until the victim is reached without policies.
func (f *forger) open(t *testing.T, victim net.PacketConn, own netip.Addr) {
	t.Helper()
	applyPolicies(t, f.d)
	testkit.Eventually(t, 10*time.Second, func() error {
		f.send(t, f.datagram(own, victim, "open"), f.honest())
		return f.expect(victim, "open")
	})
}

// isRefused sends a datagram under a policy that denies all to the victim, which gets nothing, and without, when it gets it.
func (f *forger) isRefused(t *testing.T, victim net.PacketConn, own netip.Addr, send func([]byte)) {
	t.Helper()
	const denyAll = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny}, spec: {podSelector: {}, policyTypes: [Ingress]}}`
	applyPolicies(t, f.d, denyAll)
	before := counts(t, f.d)
	send(f.datagram(own, victim, "denied"))
	testkit.Eventually(t, 10*time.Second, func() error {
		if delta(t, f.d, before)["drop_policy_ingress"] == 0 {
			return errors.New("nothing was dropped")
		}
		return nil
	})
	applyPolicies(t, f.d)
	send(f.datagram(own, victim, "allowed"))
	if err := f.expect(victim, "allowed"); err != nil {
		t.Error(err)
	}
}

// getsNothingByXDP is isRefused for AF_XDP, by which the kernel carries packets of some modes only.
func (f *forger) getsNothingByXDP(t *testing.T, victim net.PacketConn, own netip.Addr) {
	t.Helper()
	if err := sendXDP(f.pods[1], f.device.Index, f.datagram(own, victim, "warm")); errors.Is(err, unix.EBUSY) {
		t.Logf("the kernel has dropped it: AF_XDP does not say of which protocol packets are, and ipvlan asks")
		return
	}
	f.isRefused(t, victim, own, func(frame []byte) {
		succeed(t, sendXDP(f.pods[1], f.device.Index, frame))
	})
}

// sendXDP sends a frame by an AF_XDP socket, which skips the queue of the device and its programs.
func sendXDP(ns *netns.Namespace, index int, frame []byte) error {
	return ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		const size = 4096
		memory, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(memory) }()
		copy(memory, frame)
		area := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Len: 2 * size, Size: size}
		if _, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG, uintptr(unsafe.Pointer(&area)), unsafe.Sizeof(area), 0); errno != 0 {
			return errno
		}
		for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
			if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, 8); err != nil {
				return err
			}
		}
		var offsets unix.XDPMmapOffsets
		length := uint32(unsafe.Sizeof(offsets))
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, uintptr(unsafe.Pointer(&offsets)), uintptr(unsafe.Pointer(&length)), 0); errno != 0 {
			return errno
		}
		ring, err := unix.Mmap(fd, unix.XDP_PGOFF_TX_RING, int(offsets.Tx.Desc)+8*16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(ring) }()
		// The kernel takes a while to forget the last socket of a queue.
		to := &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(index)}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if err = unix.Bind(fd, to); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			return err
		}
		binary.NativeEndian.PutUint32(ring[offsets.Tx.Desc+8:], uint32(len(frame)))
		binary.NativeEndian.PutUint32(ring[offsets.Tx.Producer:], 1)
		return unix.Send(fd, nil, unix.MSG_DONTWAIT)
	})
}
