// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestSafety has root in a pod, with all capabilities but without the host's bpffs, try to get rid of the programs on
// the pod's own device. docs/datapath.md lists the ways around the programs.
func TestSafety(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2, ipvlan-l3, segment", func(t *testing.T, mode linkMode) {
		s := newSafety(t, mode.make(t))
		s.layer2 = mode.name == "macvlan" || mode.name == "ipvlan-l2"
		for _, a := range append(s.refused(), s.open()...) {
			t.Run(a.name, func(t *testing.T) { s.test(t, a) })
		}
		t.Run("delete the device", s.deleteDevice)
	})
}

// safety is a pod that tries.
type safety struct {
	network network
	pod     *netns.Namespace
	device  rtnl.Device
	d       *Datapath
	service netip.AddrPort
	layer2  bool // its packets reach the device of a parent as they are
}

func newSafety(t *testing.T, n network) *safety {
	t.Helper()
	testkit.RequireTool(t, "tc")
	s := &safety{network: n, pod: n.pods[1], d: openTest(t), service: netip.MustParseAddrPort(service4 + ":53")}
	n.attachBoth(t, s.d)
	backend := testkit.Echo(t, n.pods[0], "udp", podA4+":0")
	putService(t, s.d, newService(service.UDP, s.service.String(), backend.String()))
	s.device = must(rtnl.In(s.pod).Device("eth0"))(t)
	return s
}

// attempt is something that the pod tries.
type attempt struct {
	name   string
	try    func(t *testing.T) error
	fails  bool               // whether the kernel refuses it
	send   func(t *testing.T) // sends a datagram to the service; s.datagram if nil
	bypass bool               // true if packets then bypass the programs
	undo   func(t *testing.T)
}

func (s *safety) test(t *testing.T, a attempt) {
	err := a.try(t)
	testkit.Check(t, (err != nil) == a.fails, "error %v, want one: %v", err, a.fails)
	if a.undo != nil {
		defer a.undo(t)
	}
	if a.send == nil {
		a.send = s.datagram
	}
	failIf(t, a.bypass && s.forwarded(t, a.send), "translated, and not as documented")
	if !a.bypass {
		testkit.Eventually(t, 5*time.Second, func() error { // the gateway's MAC may have to be asked for
			if !s.forwarded(t, a.send) {
				return errors.New("not translated")
			}
			return nil
		})
	}
	// The other pod keeps its services whatever this one does.
	noError(t, errOf(testkit.RoundTrip(t, s.network.pods[0], "udp", s.service.String(), []byte("still there"))),
		"the other pod")
}

// forwarded is whether what send sends is translated, which is when it is sent.
func (s *safety) forwarded(t *testing.T, send func(*testing.T)) bool {
	t.Helper()
	before := counts(t, s.d)
	send(t)
	return delta(t, s.d, before)["forward"] > 0
}

func (s *safety) datagram(t *testing.T) {
	t.Helper()
	conn := must(testkit.Dial(s.pod, "udp", s.service.String()))(t)
	defer conn.Close()
	must(conn.Write([]byte("hello")))(t)
}

func (s *safety) run(command string) func(*testing.T) error {
	return func(*testing.T) error {
		fields := strings.Fields(command)
		return s.pod.Do(func() error {
			out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput()
			if err != nil {
				return errors.New(string(out))
			}
			return nil
		})
	}
}

// must is run for what undoes an attempt.
func (s *safety) must(command string) func(*testing.T) {
	return func(t *testing.T) {
		noError(t, s.run(command)(t))
	}
}

func (s *safety) refused() []attempt {
	return []attempt{
		{name: "delete tc filters", try: s.run("tc filter del dev eth0 egress"), fails: true},
		{name: "delete the clsact qdisc", try: s.run("tc qdisc del dev eth0 clsact"), fails: true},
		{name: "replace the root qdisc", try: s.run("tc qdisc replace dev eth0 root pfifo"),
			undo: s.must("tc qdisc del dev eth0 root")},
		{name: "a clsact qdisc of its own", try: s.run("tc qdisc add dev eth0 clsact"),
			undo: s.must("tc qdisc del dev eth0 clsact")},
		{name: "pop the first program", try: s.pop(ebpf.AttachTCXEgress), fails: true},
		{name: "pop the program on the way in", try: s.pop(ebpf.AttachTCXIngress), fails: true},
		{name: "detach the link by its number, without CAP_SYS_ADMIN", try: s.linkByID, fails: true},
		{name: "set the device down and up", try: func(t *testing.T) error {
			return errors.Join(s.run("ip link set eth0 down")(t), s.run("ip link set eth0 up")(t),
				s.run("ip route replace default via "+gateway4+" dev eth0 onlink")(t))
		}},
		{name: "raw packets", try: func(*testing.T) error { return nil }, send: func(t *testing.T) { s.raw(t, false) }},
	}
}

// open are attempts that get past the programs with the pod's own packets. On a parent they get no further than that.
func (s *safety) open() []attempt {
	list := []attempt{
		{name: "raw packets past the qdisc", try: func(*testing.T) error { return nil },
			send: func(t *testing.T) { s.raw(t, true) }, bypass: true},
		s.ownProgram(),
	}
	switch s.device.Kind {
	case "macvlan":
		list = append(list, s.second("ip link add link eth0 name eth1 type macvlan mode bridge"))
	case "ipvlan":
		list = append(list, s.second("ip link add link eth0 name eth1 type ipvlan"))
	}
	return list
}

func (s *safety) second(command string) attempt {
	return attempt{
		name: "a second device beside the first",
		try: func(t *testing.T) error {
			return errors.Join(s.run(command)(t), s.run("ip addr add 192.168.10.99/32 dev eth1")(t),
				s.run("ip link set eth1 up")(t),
				s.run("ip route add "+s.service.Addr().String()+" dev eth1")(t),
				s.run("ip neigh replace "+s.service.Addr().String()+" dev eth1 lladdr 02:00:00:00:00:01 nud permanent")(t))
		},
		bypass: true,
		undo:   s.must("ip link del eth1"),
	}
}

// ownProgram is a program before ours that lets everything out.
func (s *safety) ownProgram() attempt {
	var own link.Link
	return attempt{
		name: "a program before ours",
		try: func(t *testing.T) error {
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}) // TC_ACT_OK
			succeed(t, err)
			defer p.Close()
			return s.pod.Do(func() error {
				own, err = link.AttachTCX(link.TCXOptions{Interface: s.device.Index, Program: p, Attach: ebpf.AttachTCXEgress,
					Anchor: link.Head()})
				return err
			})
		},
		bypass: true,
		undo:   func(*testing.T) { _ = own.Close() },
	}
}

// deleteDevice leaves the pod without a device, and the endpoint to be deleted by the host.
func (s *safety) deleteDevice(t *testing.T) {
	succeed(t, s.run("ip link del eth0")(t))
	failIf(t, s.d.Endpoints().alive(2), "the endpoint looks alive")
	noError(t, s.d.Endpoints().DeleteIP(t.Context(), netip.MustParseAddr(podB4)))
	wantEndpoints(t, s.d, podA4, podA6)
}

// raw sends a frame to the service by a packet socket.
func (s *safety) raw(t *testing.T, bypass bool) {
	t.Helper()
	p := packet{src: netip.MustParseAddrPort(podB4 + ":4000"), dst: s.service, proto: protoUDP, payload: "raw"}
	frame := append(mac("02"), s.device.MAC...)
	frame = append(append(frame, 0x08, 0x00), p.ip()...)
	err := sender{ns: s.pod, index: s.device.Index, skip: bypass}.raw(frame)
	if bypass && s.layer2 {
		failIf(t, !errors.Is(err, unix.ENOBUFS), "%v, want %v: the program at the parent drops it", err, unix.ENOBUFS)
		return
	}
	succeed(t, err)
}

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

// linkByID opens the link by the number that a query returns, and detaches it. Opening requires CAP_SYS_ADMIN in the
// first user namespace, which is dropped here.
func (s *safety) linkByID(t *testing.T) error {
	var id link.ID
	err := s.pod.Do(func() error {
		result, err := link.QueryPrograms(link.QueryOptions{Target: s.device.Index, Attach: ebpf.AttachTCXEgress})
		if err == nil && len(result.Programs) > 0 {
			id, _ = result.Programs[0].LinkID()
		}
		return err
	})
	testkit.Require(t, err == nil && id != 0, "link %d: %v", id, err)
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
