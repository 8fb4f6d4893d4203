// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestJSON checks the names and types of all fields of the JSON document, for devices of several kinds.
func TestJSON(t *testing.T) {
	testkit.RequireTool(t, "ip")
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	for _, line := range []string{
		"link add br0 type bridge",
		"link add port type veth peer name eth0 netns " + b.Name(),
		"link set port master br0 up",
		"link add up0 type veth peer name up1",
		"link add link up0 name mv0 netns " + b.Name() + " type macvlan mode vepa",
		"link add vx type vxlan id 42 dstport 4789",
		"tuntap add t0 mode tun",
	} {
		if out, err := exec.Command("ip", append([]string{"-n", a.Name()}, strings.Fields(
			line)...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	snapshot := testkit.Must(Take())(t)
	defer snapshot.Close()
	info := testkit.Must(snapshot.Info(a))(t)
	links := testkit.Must(snapshot.Links(a))(t)
	stdout := string(testkit.Must(json.Marshal(JSON([]Inventory{{Namespace: info, Links: links}}, true)))(t))
	var document document
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&document)
	testkit.Require(t, err == nil, "%v:\n%s", err, stdout)
	inode := testkit.Must(a.Inode())(t)
	testkit.Check(t, document.Schema == 1 && document.Namespace.Name == a.Name() && document.Namespace.Inode == inode,
		"document is %+v", document)
	byName := map[string]linkJSON{}
	for _, l := range document.Links {
		byName[l.Name] = l
	}
	port := byName["port"]
	if port.Peer == nil || port.Peer.Name != "eth0" || port.Peer.Namespace.Name != b.Name() || port.Master != "br0" {
		t.Errorf("port is %+v", port)
	}
	if c := byName["up0"].Children; len(c) != 1 || c[0].Name != "mv0" || c[0].Mode != "vepa" ||
		c[0].Namespace.Name != b.Name() {
		t.Errorf("children are %+v", c)
	}
	if *port.SpeedMbit != 10000 || *byName["br0"].SpeedMbit != 10000 && *byName["br0"].SpeedMbit != -1 ||
		byName["lo"].SpeedMbit != nil {
		t.Errorf("speeds are %d, %d and %v", *port.SpeedMbit, *byName["br0"].SpeedMbit, byName["lo"].SpeedMbit)
	}
	id := byName["vx"].Settings["id"]
	testkit.Check(t, id == 42.0, "the VXLAN's settings are %v", byName["vx"].Settings)
	if tun := byName["t0"]; tun.Kind != "tun" || tun.Mode != "tun" || tun.MAC != "" || len(tun.Addresses) != 0 {
		t.Errorf("tun device is %+v", tun)
	}
	var loose struct{ Links []map[string]any }
	testkit.Succeed(t, json.Unmarshal([]byte(stdout), &loose))
	for _, l := range loose.Links {
		for _, key := range []string{
			"name", "index", "kind", "up", "operstate", "carrier", "mtu", "addresses", "speed_mbit", "offloads", "qdisc",
			"tx_queues", "rx_queues", "queue_length", "gso_max_size", "programs",
		} {
			_, ok := l[key]
			testkit.Check(t, ok, "%v has no %q", l["name"], key)
		}
	}
}

// TestWriteTree renders links that no kernel has all at once.
func TestWriteTree(t *testing.T) {
	link := func(index int, name, kind string) Link {
		return Link{Device: rtnl.Device{Index: index, Name: name, Kind: kind, Up: true, MTU: 1500}, Carrier: true,
			OperState: "up", Qdisc: "noqueue"}
	}
	br0, port, vlan := link(1, "br0", "bridge"), link(2, "port", "veth"), link(3, "br0.7", "vlan")
	port.Master, port.MasterIndex = "br0", 1
	port.Peer = &Peer{Index: 9, Namespace: &NamespaceInfo{NSID: 4}}
	vlan.Parent, vlan.ParentIndex = &Peer{Name: "br0", Index: 1}, 1
	br0.Children = []Peer{{Name: "eth0", Kind: "ipvlan", Mode: "l2", Namespace: &NamespaceInfo{Name: "pod"}}}
	// Two devices that sit on each other are listed exactly once.
	x, y := link(4, "x", "vxlan"), link(5, "y", "vxlan")
	x.Parent, y.Parent = &Peer{Name: "y", Index: 5}, &Peer{Name: "x", Index: 4}
	down := link(6, "gone", "macvlan")
	down.Up, down.Mode, down.Alias, down.Hardware.Speed = false, "vepa", "old", SpeedUnknown
	down.AltNames = []string{"went", "vanished"}
	down.Parent = &Peer{Index: 77} // went while we looked
	port.Programs = []Program{{Hook: "tcx ingress", ID: 7, Name: "from_pod", Mustang: true}, {Hook: "xdp", ID: 8}}
	var out bytes.Buffer
	links := []Link{br0, port, vlan, x, y, down}
	testkit.Succeed(t, WriteTree(&out, []Inventory{{Namespace: NamespaceInfo{Name: "here", Inode: 5}, Links: links}}))
	want := strings.TrimPrefix(`
network namespace here (inode 5)
INTERFACE  KIND          STATE  MTU   SPEED    JOINED TO
br0        bridge        up     1500  -
|     offloads none, queues 0 tx 0 rx, qdisc noqueue
|-- port   veth          up     1500  -        <-> device 9 in nsid 4
|         offloads none, queues 0 tx 0 rx, qdisc noqueue
|         tcx ingress: from_pod (id 7, mustang), xdp: program (id 8)
|-- br0.7  vlan          up     1500  -
|         offloads none, queues 0 tx 0 rx, qdisc noqueue
`+"`"+`-- eth0   ipvlan l2                           in pod
gone       macvlan vepa  down   1500  unknown  on device 77
      offloads none, queues 0 tx 0 rx, qdisc noqueue
      altname went, vanished
      alias "old"
x          vxlan         up     1500  -        on y
|     offloads none, queues 0 tx 0 rx, qdisc noqueue
`+"`"+`-- y      vxlan         up     1500  -
          offloads none, queues 0 tx 0 rx, qdisc noqueue
`, "\n")
	testkit.Check(t, out.String() == want, "tree is\n%s\nwant\n%s", out.String(), want)
}

// TestLinkText formats each state and speed.
func TestLinkText(t *testing.T) {
	for speed, want := range map[int]string{0: "-", -1: "unknown", 10: "10Mbit/s", 2500: "2.5Gbit/s", 10000: "10Gbit/s"} {
		got := speedText(speed)
		testkit.Check(t, got == want, "speed %d is %q, want %q", speed, got, want)
	}
	for want, l := range map[string]Link{
		"down":       {OperState: "down"},
		"no-carrier": {Device: rtnl.Device{Up: true}, OperState: "lower-layer-down"},
		"up":         {Device: rtnl.Device{Up: true}, Carrier: true, OperState: "unknown"},
		"dormant":    {Device: rtnl.Device{Up: true}, Carrier: true, OperState: "dormant"},
	} {
		got := stateText(l)
		testkit.Check(t, got == want, "state is %q, want %q", got, want)
	}
	settings := []Setting{
		{Name: "stp", Value: true}, {Name: "forward_delay_ms", Value: 20}, {Name: "id", Value: "8000.00"},
		{Name: "nf_call_iptables", Value: true}, {Name: "nf_call_ip6tables", Value: false}, {Name: "nf_call_arptables",
			Value: true},
	}
	want := []string{"stp on", "forward-delay 20ms", "id 8000.00", "nf-call iptables+arptables"}
	got := settingsText(settings)
	testkit.Check(t, slices.Equal(got, want), "settings are %q, want %q", got, want)
	offloads := Link{Hardware: Hardware{Offloads: map[string]bool{"gro": true, "tso": true, "lro": false}}}
	if got := offloadsText(offloads); got != "offloads tso gro (off: lro)" {
		t.Errorf("offloads are %q", got)
	}
	if got := wrap([]string{"aaa", "bbb", "ccc"}, 8); !reflect.DeepEqual(got, []string{"aaa,", "bbb, ccc"}) &&
		!reflect.DeepEqual(got, []string{"aaa, bbb,", "ccc"}) {
		t.Errorf("lines are %q", got)
	}
}

// TestHostileNames prints devices, programs and namespaces whose names would drive a terminal: escaped.
func TestHostileNames(t *testing.T) {
	const name = "a\x1b[2J\u009b1m\xff\a"
	links := []Link{
		{Device: rtnl.Device{Index: 1, Name: name, Kind: name}, Mode: name, Qdisc: name, Alias: name,
			AltNames: []string{name}, Peer: &Peer{Index: 2, Name: name, Namespace: &NamespaceInfo{Name: name}},
			Settings: []Setting{{Name: name, Value: name}},
			Children: []Peer{{Name: name, Kind: name, Namespace: &NamespaceInfo{Name: name}}},
			Programs: []Program{{Hook: name, Name: name}}},
		{Device: rtnl.Device{Index: 3, Name: name + "3", MasterIndex: 1, Up: true}, Master: name, OperState: name,
			Carrier: true},
	}
	all := []Inventory{{Namespace: NamespaceInfo{Name: name}, Links: links}}
	for format, write := range map[string]func(io.Writer, []Inventory) error{"tree": WriteTree, "table": WriteTable} {
		var out strings.Builder
		testkit.Succeed(t, write(&out, append(all, all...)))
		text := strings.ReplaceAll(out.String(), "\n", "")
		testkit.Check(t, Printable(text) == text && strings.Contains(text, `a\x1b[2J\u009b1m\xff\a`), "%s: %q", format, text)
	}
}
