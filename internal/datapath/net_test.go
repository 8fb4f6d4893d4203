// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
	"mustang/internal/tun"
)

// network is a host with two pods.
type network struct {
	host        *netns.Namespace
	pods        [2]*netns.Namespace
	relayed     [2]bool // whether the host's device and the pod's are joined by a program only
	segment     string  // a device of the host, if the pods' own devices are used whatever their kind
	ovsdb       string  // the socket of the host's Open vSwitch; and whether that switches packets itself
	inUserSpace bool
}

// Addresses of the pods and their gateways.
const (
	podA4, podB4         = "192.168.10.10", "192.168.10.11"
	podA6, podB6         = "fd00:10::a", "fd00:10::b"
	gateway4, gateway6   = "192.168.10.1", "fd00:10::1"
	service4, service6   = "10.96.0.100", "fd00:96::100"
	servicePort, podPort = "5201", "8080"
)

// inNamespace is a line that ip(8) can read from a batch: the options, and the command.
var inNamespace = regexp.MustCompile(`^(-n \S+(?: -6)?) (.*)`)

// expand writes out two lines that stand for several commands: "up NAMESPACE DEVICE ADDRESS..." gives a device
// addresses and sets it up, "default NAMESPACE ROUTER..." adds default routes.
func expand(line string) (lines []string) {
	words := append(strings.Fields(line), "", "")
	in := "-n " + words[1]
	switch words[0] {
	case "up":
		for _, address := range words[3 : len(words)-2] {
			nodad := map[bool]string{true: " nodad"}[strings.Contains(address, ":")]
			lines = append(lines, in+" addr add "+address+" dev "+words[2]+nodad)
		}
		return append(lines, in+" link set "+words[2]+" up")
	case "default":
		for _, router := range words[2 : len(words)-2] {
			lines = append(lines, in+" route add default via "+router)
		}
		return lines
	}
	return []string{strings.TrimSpace(line)}
}

// run executes the commands of ip(8), one a line, and the lines of expand; HOST, PODA and PODB stand for the
// namespaces. Successive commands in one namespace are one process: ip mounts /sys whenever it enters a namespace.
func (n network) run(t testing.TB, script string) {
	t.Helper()
	names := strings.NewReplacer("HOST", n.host.Name(), "PODA", n.pods[0].Name(), "PODB", n.pods[1].Name())
	options, batch := "", ""
	execute := func(args, input string) {
		t.Helper()
		cmd := exec.Command("ip", strings.Fields(args)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		testkit.Require(t, err == nil, "ip %s: %v: %s%s", args, err, out, input)
	}
	flush := func() {
		t.Helper()
		if batch != "" {
			execute(options+" -batch -", batch)
		}
		batch = ""
	}
	for text := range strings.Lines(names.Replace(script)) {
		for _, line := range expand(text) {
			if found := inNamespace.FindStringSubmatch(line); found != nil {
				if found[1] != options {
					flush()
				}
				options, batch = found[1], batch+found[2]+"\n"
			} else if line != "" {
				flush()
				execute(line, "")
			}
		}
	}
	flush()
}

func newNetwork(t testing.TB) network {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "ip")
	n := network{host: testkit.Namespace(t, "host")}
	n.pods[0], n.pods[1] = testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	for _, ns := range append(n.pods[:], n.host) { // no wait for link-local addresses
		succeed(t, rtnl.In(ns).SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	setForwarding(t, n.host, "1")
	return n
}

// setForwarding has a namespace forward packets, or not.
func setForwarding(t testing.TB, ns *netns.Namespace, value string) {
	t.Helper()
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		succeed(t, rtnl.In(ns).SetSysctl(key, value))
	}
}

// routed pods hang off veths, and the host routes between them.
func routed(t testing.TB) network {
	n := newNetwork(t)
	n.run(t, `
		-n HOST link add va type veth peer name eth0 netns PODA
		-n HOST link add vb type veth peer name eth0 netns PODB
		-n HOST addr add `+gateway4+`/32 dev lo
		-n HOST addr add `+gateway6+`/128 dev lo
		up PODA eth0 `+podA4+`/32 `+podA6+`/128
		up PODB eth0 `+podB4+`/32 `+podB6+`/128
		up HOST va fe80::1/64
		up HOST vb fe80::1/64
		-n HOST route add `+podA4+` dev va
		-n HOST route add `+podB4+` dev vb
		-n HOST route add `+podA6+` dev va
		-n HOST route add `+podB6+` dev vb`)
	for _, device := range []string{"va", "vb"} {
		succeed(t, rtnl.In(n.host).SetSysctl("net/ipv4/conf/"+device+"/proxy_arp", "1"))
	}
	for _, pod := range []string{"PODA", "PODB"} {
		n.run(t, `
			-n `+pod+` route add `+gateway4+` dev eth0
			default `+pod+` `+gateway4+`
			-n `+pod+` -6 route add default via fe80::1 dev eth0`)
	}
	return n
}

// bridged pods hang off a bridge with the gateway's addresses.
func bridged(t testing.TB) network {
	n := newNetwork(t)
	n.run(t, `
		-n HOST link add br0 type bridge forward_delay 0 stp_state 0
		up HOST br0 `+gateway4+`/24 `+gateway6+`/64
		-n HOST link add va type veth peer name eth0 netns PODA
		-n HOST link add vb type veth peer name eth0 netns PODB
		-n HOST link set va master br0 up
		-n HOST link set vb master br0 up`)
	n.onLink(t)
	return n
}

// slaves are macvlans over one end of a veth, with one for the host.
func slaves(t testing.TB) network {
	n := newNetwork(t)
	n.uplink(t)
	n.run(t, `
		-n HOST link add mst-host link up0 type macvlan mode bridge
		up HOST mst-host `+gateway4+`/24 `+gateway6+`/64
		-n HOST link add link up0 name eth0 netns PODA type macvlan mode bridge
		-n HOST link add link up0 name eth0 netns PODB type macvlan mode bridge`)
	// As the link mode does: otherwise mst-host also answers ARP for the address of up0.
	succeed(t, rtnl.In(n.host).SetSysctl("net/ipv4/conf/mst-host/arp_ignore", "1"))
	n.onLink(t)
	return n
}

// onLink gives the pods their addresses in the gateway's network.
func (n network) onLink(t testing.TB) {
	t.Helper()
	n.run(t, `
		up PODA eth0 `+podA4+`/24 `+podA6+`/64
		up PODB eth0 `+podB4+`/24 `+podB6+`/64
		default PODA `+gateway4+` `+gateway6+`
		default PODB `+gateway4+` `+gateway6)
}

func (n network) attachBoth(t testing.TB, d *Datapath) {
	t.Helper()
	for i := range n.pods {
		wantLen(t, wantPut(t, d, n.attachment(i), Added), 2, "addresses")
	}
}

// linkMode is a way of plugging in pods.
type linkMode struct {
	name string
	make func(testing.TB) network
}

// linkModes are all of them, with devices that complete checksums and without.
func linkModes() []linkMode {
	completing := func(t testing.TB) network { // the host's devices compute the checksums of packets into pods
		t.Helper()
		testkit.RequireTool(t, "ethtool")
		n := routed(t)
		n.run(t, `
			netns exec HOST ethtool -K va tx off
			netns exec HOST ethtool -K vb tx off`)
		return n
	}
	return []linkMode{
		{"veth", routed}, {"bridge", bridged}, {"macvlan", slaves}, {"segment", switched},
		{"ipvlan-l2", plugged("ipvlan-l2")}, {"ipvlan-l3", plugged("ipvlan-l3")}, {"ipvlan-l3s", plugged("ipvlan-l3s")},
		{"netkit", plugged("netkit")}, {"netkit-l2", plugged("netkit-l2")},
		{"ovs-veth", plugged("ovs-veth")}, {"ovs-internal", plugged("ovs-internal")},
		{"tap", plugged("tap")}, {"tun", plugged("tun")},
		{"veth without offload", plain(routed)}, {"macvlan without offload", plain(slaves)},
		{"veth whose host side is without offload", completing},
	}
}

func onLinks(t *testing.T, names string, test func(*testing.T, linkMode)) {
	for _, m := range linkModes() {
		if names == "" || slices.Contains(strings.Split(names, ", "), m.name) {
			t.Run(m.name, func(t *testing.T) { test(t, m) })
		}
	}
}

func plugged(name string) func(testing.TB) network {
	return func(t testing.TB) network {
		t.Helper()
		mode := usable(t, name)
		n := newNetwork(t)
		n.uplink(t)
		if mode.Traits().Needs == podlink.NeedsOpenVSwitch {
			n.startOpenVSwitch(t, mode)
		}
		on := n.subnetOn(t, mode, "up0", gateway4+"/24", gateway6+"/64")
		n.plug(t, mode, on, 0, podA4, podA6)
		n.plug(t, mode, on, 1, podB4, podB6)
		n.relayed = [2]bool{mode.Traits().Needs == podlink.NeedsRelay, mode.Traits().Needs == podlink.NeedsRelay}
		return n
	}
}

func usable(t testing.TB, name string) podlink.Mode {
	t.Helper()
	mode := must(podlink.Lookup(name))(t)
	testkit.RequireMode(t, mode.Probe())
	return mode
}

// uplink gives the host a device for pods to sit on.
func (n network) uplink(t testing.TB) {
	n.run(t, `
		-n HOST link add up0 type veth peer name up1
		-n HOST link set up0 up
		-n HOST link set up1 up`)
}

// startOpenVSwitch starts one that ends with the test. The programs go where its packets can be met.
func (n *network) startOpenVSwitch(t testing.TB, mode podlink.Mode) {
	t.Helper()
	if err := ovs.FindPrograms(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir := must(os.MkdirTemp("", "mst-ovs-"))(t) // a test's own path is too long for a socket
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := must(ovs.Start(n.host, filepath.Join(dir, "run"), ""))(t)
	t.Cleanup(func() {
		noError(t, s.Stop())
	})
	n.ovsdb, n.inUserSpace = s.Socket(), s.Datapath() == ovs.UserSpace
	if n.inUserSpace {
		testkit.NeedsOther(t)
	}
	if n.inUserSpace || !mode.Traits().HostSide {
		n.segment = podlink.DefaultBridge
	}
}

// subnetOn sets the host up for pods of a link mode on a device.
func (n network) subnetOn(t testing.TB, mode podlink.Mode, uplink string, gateways ...string) podlink.Network {
	t.Helper()
	on := podlink.Network{Host: n.host, Uplink: uplink, OVSDB: n.ovsdb}
	for _, g := range gateways {
		on.Gateways = append(on.Gateways, netip.MustParsePrefix(g))
	}
	succeed(t, mode.Setup(on))
	return on
}

// plug plugs in one of the pods.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say what goes where
func (n network) plug(t testing.TB, mode podlink.Mode, on podlink.Network, i int, addresses ...string) {
	t.Helper()
	pod := podlink.Pod{Namespace: n.pods[i], IfName: "eth0", HostIfName: hostDevices()[i]}
	for _, a := range addresses {
		pod.Addresses = append(pod.Addresses, netip.MustParseAddr(a))
	}
	must(mode.Create(on, pod))(t)
	if mode.Traits().Needs == podlink.NeedsRelay {
		relay(t, mode.Name(), n.host, pod)
	}
}

func hostDevices() [2]string { return [2]string{"va", "vb"} }

// TestWithoutNamespace has a pod behind TAP with only its address and MAC given, like a VM.
func TestWithoutNamespace(t *testing.T) {
	n, d := plugged("tap")(t), openTest(t)
	vm := must(rtnl.In(n.pods[1]).Device("eth0"))(t)
	attach := EndpointSpec{Host: n.host, HostIfName: "vb", MAC: vm.MAC, Addresses: []netip.Addr{
		netip.MustParseAddr(podB4), netip.MustParseAddr(podB6), netip.MustParseAddr("fe80::1"),
	}}
	wantPut(t, d, n.attachment(0), Added)
	wantLen(t, wantPut(t, d, attach, Added), 2, "addresses")
	wantPut(t, d, attach, Unchanged)
	for _, f := range families() {
		testTraffic(t, trafficCase{n, d, f, "tcp", "redirect_device", false})
	}
	noError(t, d.Endpoints().DeleteDevice(t.Context(), attach))
	wantEndpoints(t, d, podA4, podA6)
}

// relay joins the two ends of a pod's link, and returns when packets can pass.
func relay(t testing.TB, mode string, host *netns.Namespace, pod podlink.Pod) {
	t.Helper()
	kind := tun.TUN
	if mode == "tap" {
		kind = tun.TAP
	}
	open := func(ns *netns.Namespace, name string) *tun.Device {
		return must(tun.Open(ns, tun.Options{Name: name, Kind: kind, Offload: true}))(t)
	}
	outer, inner := open(host, pod.HostIfName), open(pod.Namespace, pod.IfName)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = tun.Switch(ctx, outer, inner) }) // an error if the devices go first
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = outer.Close()
		_ = inner.Close()
	})
}

// switched pods are ports of a bridge by their own devices, as with a switch outside the kernel.
func switched(t testing.TB) network {
	n := bridged(t)
	n.segment = "br0"
	return n
}
