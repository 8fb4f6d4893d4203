// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// uplinkCase is pods with an uplink beside them or below them.
type uplinkCase struct {
	name    string
	make    func(testing.TB) network
	below   bool   // the pods sit on the uplink itself
	forward string // the counter of packets into pods
	stack   bool   // packets take the way through the host's stack
}

// TestUplink has clients outside call services at the host's own address, and at a port of all addresses of the node.
// Pods and the host itself call this port too.
func TestUplink(t *testing.T) {
	for _, c := range []uplinkCase{
		{"veth", routed, false, "redirect_peer", false},
		{"bridge", bridged, false, "redirect_peer", false},
		{"macvlan", slaves, true, "l2_delivered", false},
		{"macvlan elsewhere", slaves, false, "passed", true},
		{"segment", switched, false, "passed", true},
		{"ipvlan-l2", plugged("ipvlan-l2"), true, "l2_delivered", false},
		{"ipvlan-l2 elsewhere", plugged("ipvlan-l2"), false, "passed", true},
		{"ipvlan-l3", plugged("ipvlan-l3"), true, "l2_delivered", false},
		{"ipvlan-l3s", plugged("ipvlan-l3s"), true, "l2_delivered", false},
		{"netkit", plugged("netkit"), false, "redirect_peer", false},
		{"netkit-l2", plugged("netkit-l2"), false, "redirect_peer", false},
		{"tap", plugged("tap"), false, "redirect_device", false},
		{"tun", plugged("tun"), false, "redirect_device", false},
	} {
		t.Run(c.name, c.test)
	}
}

func (c uplinkCase) test(t *testing.T) {
	n, d := c.make(t), openTest(t)
	far, uplink := (*netns.Namespace)(nil), "wire"
	if c.below {
		far, uplink = n.behindUplink(t), "up0"
	} else {
		far = n.wire(t)
	}
	if !c.stack { // the host forwards nothing, so that nothing takes the way through it
		setForwarding(t, n.host, "0")
	}
	n.attachBoth(t, d)
	equal(t, must(d.Uplinks().Put(t.Context(), n.host, uplink))(t), Added, "AddUplink")
	cl := cluster{network: n, d: d, client: far}
	for _, f := range [][4]string{{near4, podA4, far4, "0.0.0.0"}, {near6, podA6, far6, "::"}} {
		for _, protocol := range tcpAndUDP {
			t.Run(f[0]+"/"+protocol.String(), func(t *testing.T) {
				o := outsideCase{cluster: cl, protocol: protocol, near: netip.MustParseAddr(f[0]),
					pod: netip.MustParseAddr(f[1]), outer: netip.MustParseAddr(f[2]), all: netip.MustParseAddr(f[3])}
				c.callAll(t, o)
			})
		}
	}
	wantNoDrops(t, d)
}

// callAll calls a port of the host that belongs to a pod, one of the host itself, and a node port, which is the pod's
// port.
func (c uplinkCase) callAll(t *testing.T, o outsideCase) {
	t.Helper()
	s := o.service(o.echo(t, o.pods[0], o.pod))
	s.Frontend, s.External = netip.AddrPortFrom(o.near, 5201), false
	putService(t, o.d, s)
	known := make(map[netip.AddrPort]bool) // the kernel may choose a client's port again
	for _, payload := range o.payloads() {
		peer, diff, _ := o.call(t, o.client, s.Frontend, payload)
		equal(t, peer.Addr(), o.outer, "the pod saw")
		if diff["forward"] == 0 || diff["reverse"] == 0 || diff[c.forward] < diff["forward"] ||
			diff["new_connection"] != 1 && !known[peer] {
			t.Errorf("%d bytes from %s: counted %v", len(payload), peer, diff)
		}
		known[peer] = true
	}
	_, diff, _ := o.call(t, o.client, o.echo(t, o.host, o.near), bytes.Repeat([]byte("h"), 5000))
	failIf(t, diff["forward"]+diff["reverse"]+diff["new_connection"] != 0, "the host's own server: counted %v", diff)

	backend := testkit.Echo(t, o.pods[0], o.protocol.String(), netip.AddrPortFrom(o.pod, 30081).String())
	putService(t, o.d, o.nodePort(30081, backend))
	for name, from := range map[string]*netns.Namespace{"outside": o.client, "a pod": o.pods[1],
		"the backend": o.pods[0]} {
		_, diff, _ := o.call(t, from, netip.AddrPortFrom(o.near, 30081), []byte("node port"))
		failIf(t, diff["new_connection"] != 1 || diff["forward"] == 0 || diff["reverse"] == 0, "from %s: counted %v", name,
			diff)
	}
}

// TestUplinks repeatedly adds and deletes an uplink, and one whose device goes.
func TestUplinks(t *testing.T) {
	n, d := routed(t), openTest(t)
	far := n.wire(t)
	n.attachBoth(t, d)
	backend := testkit.Echo(t, n.pods[0], "udp", podA4+":0")
	putService(t, d, newService(service.UDP, near4+":5201", backend.String()))
	want := func(want int) {
		t.Helper()
		wantLen(t, must(d.Uplinks().List(t.Context()))(t), want, "uplinks")
		wantLinks(t, d, 4+2*want)
	}
	deviates := func() {
		t.Helper()
		wantLen(t, failsAs[*DeviationError](t, d.Uplinks().Check(n.host, "wire")).Deviations, 2, "CheckUplink of none")
	}
	u := must(FindUplink(n.host, "wire"))(t)
	wantNotFound(t, d.Uplinks().Delete(t.Context(), u))
	deviates()
	for _, change := range []Change{Added, Unchanged} {
		equal(t, must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t), change, "AddUplink")
		want(1)
	}
	noError(t, errOf(testkit.RoundTrip(t, far, "udp", near4+":5201", []byte("one"))))
	noError(t, d.Uplinks().Check(n.host, "wire"))
	succeed(t, d.Uplinks().Delete(t.Context(), u))
	want(0)
	deviates()
	_, err := d.Uplinks().Put(t.Context(), n.host, "lo")
	testkit.Check(t, err != nil, "the loopback device became an uplink")
	must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t)
	all, err := d.Uplinks().List(t.Context())
	testkit.Check(t, err == nil && slices.Equal(all, []Uplink{u}), "uplinks %v, %v; want %v", all, err, u)
	n.run(t, "-n HOST link del wire")
	wantLen(t, must(d.Uplinks().List(t.Context()))(t), 0, "uplinks")
	wantLinks(t, d, 4+2)
	noError(t, d.Uplinks().Sweep(t.Context()))
	want(0)
}

var (
	fromUplink = objects.Hook{Point: objects.AttachUplink, Program: "from_uplink"}
	toUplink   = objects.Hook{Point: objects.AttachUplink, Program: "to_uplink"}
)

// arriving returns p as it arrives at the device of test runs, whose MAC address is all zeros.
func (p packet) arriving(from string) packet {
	p.ethDst, p.ethSrc = "00", from
	return p
}

// TestUpgrade opens a root with programs of another build, while a connection is open.
func TestUpgrade(t *testing.T) {
	onLinks(t, "veth, macvlan, netkit, tun", func(t *testing.T, m linkMode) {
		testLinkUpgrade(t, m.make(t), openTest(t))
	})
}

func testLinkUpgrade(t *testing.T, n network, d *Datapath) {
	n.attachBoth(t, d)
	backend := testkit.Echo(t, n.pods[0], "tcp", podA4+":0")
	putService(t, d, newService(service.TCP, service4+":80", backend.String()))
	conn := dialFrom(t, n.pods[1], netip.AddrPort{}, "tcp", netip.MustParseAddrPort(service4+":80"))
	ofAnotherBuild(t, d, "progs")
	before := linkedProgram(t, n, d)
	again := must(Open(t.Context(), Options{Root: d.objects.Root()}))(t)
	defer again.Close()
	var want []string // the attached ones
	for _, k := range must(d.objects.Links())(t) {
		want = append(want, k.Hook.PinName())
	}
	slices.Sort(want)
	want = slices.Compact(want)
	got := programPins(t, d, "progs")
	testkit.Check(t, slices.Equal(got, want), "pinned programs %v, want %v", got, want)
	failIf(t, linkedProgram(t, n, d) == before, "the old program is attached still")
	noError(t, exchanged(conn), "the connection broke")
}

func programPins(t *testing.T, d *Datapath, dir string) (names []string) {
	t.Helper()
	for _, entry := range must(os.ReadDir(pins(d, dir)))(t) {
		names = append(names, entry.Name())
	}
	return names
}

// ofAnotherBuild renames pinned programs like another build's, and returns their names.
func ofAnotherBuild(t *testing.T, d *Datapath, dir string) []string {
	t.Helper()
	names := programPins(t, d, dir)
	for _, name := range names {
		_, rest, _ := strings.Cut(name, "-")
		succeed(t, os.Rename(pins(d, dir, name), pins(d, dir, "0000-"+rest)))
	}
	return names
}

// linkedProgram returns the id of the program that sees the first pod's egress.
func linkedProgram(t *testing.T, n network, d *Datapath) uint32 {
	t.Helper()
	place := must(findTarget(n.attachment(0)))(t)
	defer place.Close()
	l := must(link.LoadPinnedLink(pins(d, "links", objects.Link{Hook: objects.Hook{Point: place.Point,
		Program: "from_pod"}, ID: 1}.String()), nil))(t)
	defer l.Close()
	info := must(l.Info())(t)
	return uint32(info.Program)
}

// TestRemotes makes ways to other nodes, changes and deletes some. Equal ways are not written.
func TestRemotes(t *testing.T) {
	d := openTest(t)
	node, local := netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::1")
	way := func(text string, mtu int) Remote {
		return Remote{Range: netip.MustParsePrefix(text), NextHop: node, IfIndex: 7, MTU: mtu, Node: node, Local: local,
			NodeMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, LocalMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, VNI: 0x6d7374, Port: 4789}
	}
	native := Remote{Range: netip.MustParsePrefix("10.1.3.0/24"), NextHop: netip.MustParseAddr("192.0.2.3"), IfIndex: 7,
		MTU: 1500}
	generation := func() uint64 { // node_state.rows, the first field
		return binary.NativeEndian.Uint64(must(d.objects.NodeState.Map.LookupBytes(uint32(0)))(t))
	}
	for _, step := range []struct {
		what    string
		want    []Remote
		changed bool
	}{
		{"none", nil, false},
		{"of both families", []Remote{way("10.1.2.0/24", 1430), native, way("fd00:1:2::/64", 1430)}, true},
		{"the same", []Remote{way("fd00:1:2::/64", 1430), way("10.1.2.0/24", 1430), native}, false},
		{"another MTU, and one fewer", []Remote{way("10.1.2.0/24", 1400), native}, true},
		{"one in another", []Remote{way("10.1.2.0/24", 1400), way("10.1.2.128/25", 1400), native}, true},
		{"without a tunnel", []Remote{native}, true},
		{"none again", nil, true},
	} {
		before := generation()
		changed := must(d.Remotes().Apply(t.Context(), step.want))(t)
		testkit.Check(t, changed == step.changed && (generation() != before) == step.changed,
			"%s: changed %v, generation from %d to %d", step.what, changed, before, generation())
		got, want := map[netip.Prefix]Remote{}, map[netip.Prefix]Remote{}
		for _, w := range must(d.Remotes().List())(t) {
			got[w.Range] = w
		}
		for _, w := range step.want {
			want[w.Range] = w
		}
		testkit.Check(t, reflect.DeepEqual(got, want), "%s: %+v, want %+v", step.what, got, want)
	}
}
