// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// Addresses by family: of the pod that sends, of a third pod, and of a machine outside.
var (
	owns     = [2]netip.Addr{own4, own6}
	thirds   = [2]netip.Addr{netip.MustParseAddr("192.168.10.12"), netip.MustParseAddr("fd00:10::c")}
	outsides = [2]netip.Addr{outside4, outside6}
)

// forger is a pod that forges packets, beside a victim.
type forger struct {
	network
	mode   string // the link mode
	d      *Datapath
	host   bool             // the programs are on the host's device
	own    net.HardwareAddr // of the pod
	next   net.HardwareAddr // where its packets go
	device rtnl.Device
	nobody []sender // strangers, once they are made
}

// sender is how somebody sends.
type sender struct {
	name      string
	ns        *netns.Namespace
	index     int // of the device
	mac, next net.HardwareAddr
	stranger  bool   // the sender is unknown
	skip      bool   // past the queue of the device, and its filters
	xdp       bool   // by AF_XDP
	tagged    bool   // on a VLAN
	kernel    uint16 // the kernel's protocol of a packet, if not the frame's
}

func (f *forger) by(name string, index int) sender {
	return sender{name: name, ns: f.pods[1], index: index, mac: f.own, next: f.next}
}

// honest is how the pod sends its own packets.
func (f *forger) honest() sender { return f.by("by a packet socket", f.device.Index) }

// ways are the pod's ways to send: some create devices that end with its namespace.
func (f *forger) ways(t *testing.T) []sender {
	t.Helper()
	past := f.by("past the queue", f.device.Index)
	past.skip = true
	ways := []sender{f.honest(), past}
	if f.device.Kind != "macvlan" && f.device.Kind != "ipvlan" {
		return ways
	}
	second, third := f.another(t, "eth1"), f.another(t, "eth2")
	// The kernel makes a class that a filter finds the tc_index of the packet.
	if _, err := f.tryTC("qdisc add dev eth2 clsact"); err == nil {
		f.tc(t, "filter add dev eth2 egress protocol all u32 match u32 0 0 flowid 1:"+strconv.FormatInt(deliveredMark, 16))
	}
	beside := f.by("by a second device on the parent", second.Index)
	beside.skip = true
	return append(ways, beside, f.by("by a device that marks packets as delivered", third.Index))
}

// another returns one more device of the pod on the same parent.
func (f *forger) another(t *testing.T, name string) rtnl.Device {
	t.Helper()
	device, err := rtnl.In(f.pods[1]).Device(name)
	if err != nil {
		// Without a mode it would change the mode of all ipvlans on the parent.
		mode := map[string]string{"macvlan": "bridge", "ipvlan": strings.TrimPrefix(f.mode, "ipvlan-")}[f.device.Kind]
		f.run(t, "-n PODB link add link eth0 name "+name+" type "+f.device.Kind+" mode "+mode+
			"\n-n PODB link set "+name+" up")
		device = must(rtnl.In(f.pods[1]).Device(name))(t)
	}
	return device
}

const deliveredMark = 0x6d73 // DELIVERED of bpf/mustang/deliver.h

func (f *forger) tc(t *testing.T, args string) {
	t.Helper()
	testkit.Command(t, f.pods[1], "tc "+args)
}

func (f *forger) tryTC(args string) (string, error) {
	out, err := exec.Command("tc", append([]string{"-n", f.pods[1].Name()}, strings.Fields(args)...)...).CombinedOutput()
	return string(out), err
}

func newForger(t *testing.T, m linkMode) *forger {
	t.Helper()
	n := m.make(t)
	f := &forger{network: n, mode: m.name, d: openTest(t)}
	n.attachBoth(t, f.d)
	rows := must(f.d.Endpoints().List(t.Context()))(t)
	victim := rows[0]
	f.host, f.next = victim.Host, victim.PodMAC
	third := victim
	third.ID = 99
	for _, third.IP = range thirds {
		succeed(t, f.d.Endpoints().write([]Endpoint{third}))
	}
	f.device = must(rtnl.In(n.pods[1]).Device("eth0"))(t)
	f.own = append(net.HardwareAddr{}, rows[len(rows)-1].PodMAC...)
	for _, e := range rows {
		if e.ID == 2 {
			f.own = e.PodMAC
			if f.host { // a router may be next
				f.next = e.NodeMAC
			}
		}
	}
	if n.isBridged(t) {
		f.next = victim.PodMAC
	}
	return f
}

func (n network) isBridged(t *testing.T) bool {
	t.Helper()
	return slices.ContainsFunc(must(rtnl.In(n.pods[0]).Device("eth0"))(t).Addrs, func(p netip.Prefix) bool {
		return p.Addr().String() == podA4 && p.Bits() < 32
	})
}

// tryOff has senders forge sources, as try does; with the guard off, their packets arrive.
func (f *forger) tryOff(t *testing.T, victim net.PacketConn, froms []netip.Addr, senders []sender) {
	t.Helper()
	f.each(t, victim, froms, senders, func(t *testing.T, from netip.Addr, by sender) {
		f.guard(t, true)
		f.tryOne(t, victim, from, by)
		f.guard(t, false)
		defer f.guard(t, true)
		by.say(t, from, addrOf(victim), "forged")
		noError(t, f.expect(victim, "forged"), "without the guard")
	})
}

// try has senders forge sources, and sends a datagram behind each that passes: the victim gets the second alone, and
// the first is counted.
func (f *forger) try(t *testing.T, victim net.PacketConn, froms []netip.Addr, senders []sender) {
	t.Helper()
	f.each(t, victim, froms, senders, func(t *testing.T, from netip.Addr, by sender) { f.tryOne(t, victim, from, by) })
}

//revive:disable-next-line:argument-limit // t comes on top of the four that say who sends what to whom
func (*forger) each(t *testing.T, victim net.PacketConn, froms []netip.Addr, senders []sender,
	test func(*testing.T, netip.Addr, sender)) {
	t.Helper()
	for _, by := range senders {
		for _, from := range froms {
			t.Run(fmt.Sprintf("to %s from %s, %s", victim.LocalAddr(), from, by.name), func(t *testing.T) { test(t, from, by) })
		}
	}
}

// tryOne sends as try does. A stranger's packet passes if its source is outside, the pod's if it is the pod's own.
func (f *forger) tryOne(t *testing.T, victim net.PacketConn, from netip.Addr, by sender) {
	t.Helper()
	family := map[bool]int{true: 1}[from.Is6()]
	passes, source := f.honest(), owns[family]
	if by.stranger {
		passes, source = by, outsides[family]
	}
	pass := func(text string) { passes.say(t, source, addrOf(victim), text) }
	testkit.Eventually(t, 5*time.Second, func() error { // neighbours must be resolved, and a bridge's ports must forward
		pass("warm")
		return f.expect(victim, "warm")
	})
	before := counts(t, f.d)
	by.say(t, from, addrOf(victim), "forged")
	pass("passes")
	noError(t, f.expect(victim, "passes"))
	equal(t, delta(t, f.d, before)["drop_source"], 1, "drop_source")
}

func (f *forger) guard(t *testing.T, on bool) {
	t.Helper()
	for i := range f.pods {
		spec := f.attachment(i)
		spec.Unguarded = !on
		must2(f.d.Endpoints().Put(t.Context(), spec))(t)
	}
}

func addrOf(c net.PacketConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// expect returns an error unless the next datagram, apart from warm ones, has the text.
func (*forger) expect(victim net.PacketConn, text string) error {
	buffer := make([]byte, 100)
	for {
		_ = victim.SetReadDeadline(time.Now().Add(time.Second))
		n, _, err := victim.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if got := strings.TrimRight(string(buffer[:n]), "\x00"); got == text {
			return nil
		} else if got != "warm" {
			return fmt.Errorf("the victim got %q, want %q", got, text)
		}
	}
}

// sendXDP sends a frame by an AF_XDP socket, which skips the queue of the device and its programs.
func sendXDP(ns *netns.Namespace, index int, frame []byte) error {
	return socketKind{unix.AF_XDP, unix.SOCK_RAW, 0}.with(ns, func(fd int) error {
		const size = 4096
		memory, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(memory) }()
		copy(memory, frame)
		area := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Len: 2 * size, Size: size}
		if _, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
			uintptr(unsafe.Pointer(&area)), unsafe.Sizeof(area), 0); errno != 0 {
			return errno
		}
		for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
			if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, 8); err != nil {
				return err
			}
		}
		var offsets unix.XDPMmapOffsets
		length := uint32(unsafe.Sizeof(offsets))
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
			uintptr(unsafe.Pointer(&offsets)), uintptr(unsafe.Pointer(&length)), 0); errno != 0 {
			return errno
		}
		ring, err := unix.Mmap(fd, unix.XDP_PGOFF_TX_RING, int(offsets.Tx.Desc)+8*16, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(ring) }()
		// The kernel takes a while to forget the last socket of a queue.
		to := &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(index)}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
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
