// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/ovs"
	"mustang/internal/testkit"
)

// TestLookup finds each mode by its name, and names them all for another.
func TestLookup(t *testing.T) {
	for _, mode := range Modes() {
		found, err := Lookup(mode.Name())
		testkit.Check(t, err == nil && found.Name() == mode.Name(), "Lookup(%q) = %v, %v", mode.Name(), found, err)
	}
	_, err := Lookup("token-ring")
	testkit.Require(t, err != nil && strings.HasPrefix(err.Error(), `unknown link mode "token-ring" (known: `) &&
		strings.Count(err.Error(), ",") == len(Modes())-1,
		"error is %v", err)
	for _, mode := range Modes() {
		testkit.Check(t, strings.Contains(err.Error(), mode.Name()), "error %q does not name %s", err, mode.Name())
	}
}

// TestProbe distinguishes a missing kernel feature from other failures, and leaves no namespace.
func TestProbe(t *testing.T) {
	testkit.RequireRoot(t)
	err := probe("fancy", veth().requirement, requirement{
		feature: "fancy devices", module: "fancy", since: "99.1",
		try: func(s nsHandle) error {
			return s.LinkAdd(&netlink.GenericLink{LinkAttrs: newAttrs("probe2"), LinkType: "mst-fancy"})
		},
	})
	var unsupported *UnsupportedError
	testkit.Require(t, errors.As(err, &unsupported), "error is %v", err)
	for _, part := range []string{"fancy devices", "module fancy", "Linux 99.1", UnsupportedError{}.Here().Kernel} {
		testkit.Check(t, strings.Contains(err.Error(), part), "error %q does not contain %q", err, part)
	}
	err = probe("broken", requirement{feature: "x", try: func(nsHandle) error { return fs.ErrPermission }})
	testkit.Check(t, !errors.As(err, &unsupported) && errors.Is(err, fs.ErrPermission), "error is %v", err)
}

// loadModules has the kernel load the modules of the modes, which may bring settings to all namespaces.
func loadModules(t *testing.T) {
	t.Helper()
	for _, mode := range Modes() {
		if err := mode.Probe(); err != nil {
			t.Log(err)
		}
	}
}

// namedElsewhere lists the string literals outside of this package that equal the name of a link mode, by file or
// directory. All are data or mean something else: other packages decide by Traits.
func namedElsewhere() map[string][]string {
	kinds := []string{"veth", "bridge", "macvlan", "netkit", "tun", "tap"} // the kernel's kinds of devices
	return map[string][]string{
		"internal/bench/suites/":           names(),            // tables of rows
		"internal/lab/topology.go":         {"veth"},           // default of lab up
		"internal/lab/labfile/hosts.go":    {"veth"},           // default of a pod in a file
		"cmd/mustang/lab.go":               {"veth"},           // default of lab up
		"cmd/mustang/advise.go":            {"veth", "bridge"}, // links of other networks
		"internal/advise/cluster.go":       {"veth", "bridge"},
		"internal/lab/docker.go":           {"bridge"},     // Docker's network driver
		"internal/cni/netconf/validate.go": {"bridge"},     // key of a network configuration
		"cmd/mustang/cni.go":               {"bridge"},     // flag
		"cmd/mustang/tun.go":               {"tun", "tap"}, // command and flag
		"cmd/mustang/probe.go":             {"tun"},        // kernel module
		"internal/lab/podtonetwork.go":     {"macvlan"},    // kind of device
		"internal/datapath/":               kinds,
		"internal/explain/probes.go":       {"netkit"}, // kind of device
		"internal/linkinfo/":               kinds,
		"internal/ovs/switch.go":           kinds,
		"internal/rtnl/":                   kinds,
	}
}

func names() (out []string) {
	for _, mode := range append(Modes(), GuestModes()...) {
		out = append(out, mode.Name())
	}
	return out
}

// TestModeNamesElsewhere finds names of link modes in the code of other packages. A new
// mode touches this package and its documentation alone.
func TestModeNamesElsewhere(t *testing.T) {
	known, allowed, used := names(), namedElsewhere(), map[string]bool{}
	for _, top := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join("../..", top), func(path string, entry fs.DirEntry, err error) error {
			file := strings.TrimPrefix(path, "../../")
			if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") ||
				strings.HasPrefix(file, "internal/podlink/") || strings.HasPrefix(file, "internal/testkit/") {
				return err
			}
			files := token.NewFileSet()
			parsed, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(parsed, func(node ast.Node) bool {
				literal, ok := node.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(literal.Value)
				if err != nil || !slices.Contains(known, text) {
					return true
				}
				for place, names := range allowed {
					if (file == place || strings.HasSuffix(place, "/") && strings.HasPrefix(file, place)) &&
						slices.Contains(names, text) {
						used[place] = true
						return true
					}
				}
				t.Errorf("%s:%d: %s is the name of a link mode: decide by its Traits", file, files.Position(literal.Pos()).Line,
					literal.Value)
				return true
			})
			return nil
		})
		testkit.Succeed(t, err)
	}
	for place := range allowed {
		testkit.Check(t, used[place], "%s names no link mode: remove it from the list", place)
	}
}

// fitsTraits compares the traits of the mode with the link of a pod.
func (f *fixture) fitsTraits(t *testing.T) {
	t.Helper()
	traits, pod, link := f.mode.Traits(), f.pods[0], f.links[0]
	got := !link.Routes[0].Via.IsValid()
	testkit.Check(t, got == traits.Layer3, "routes name only the device: %t; Layer3 is %t", got, traits.Layer3)
	got = link.Prefixes[0].Bits() < 32
	testkit.Check(t, got == traits.Switched, "the pod has neighbours: %t; Switched is %t", got, traits.Switched)
	if name := traits.HostDevice; name != "" && traits.Switched {
		testkit.Check(t, slices.Contains(findDevice(t, f.network.Host, name).Addrs, f.network.Gateways[0]),
			"HostDevice %s lacks the gateway's address", name)
	}
	endpoint, err := f.network.Endpoint(f.mode, pod)
	testkit.Check(t, err == nil && endpoint.Namespace == pod.Namespace && endpoint.Host == f.network.Host &&
		endpoint.IfName == pod.IfName,
		"the endpoint is %+v, %v", endpoint, err)
	got = endpoint.HostIfName != ""
	testkit.Check(t, got == (traits.Needs == NeedsRelay), "the endpoint names the host's device: %t", got)
	if got := endpoint.Segment != ""; got && traits.Needs != NeedsOpenVSwitch ||
		got != (traits.Needs == NeedsOpenVSwitch && !traits.HostSide) && !inUserSpace(t, f) {
		t.Errorf("the endpoint names a segment: %t", got)
	}
}

// inUserSpace reports whether a user-space Open vSwitch switches the network.
func inUserSpace(t *testing.T, f *fixture) bool {
	t.Helper()
	if f.mode.Traits().Needs != NeedsOpenVSwitch {
		return false
	}
	return testkit.Must(f.network.ovsDatapath())(t) == ovs.UserSpace
}

func TestMode(t *testing.T) {
	for seen, want := range map[Seen]string{
		{Kind: "veth", Ethernet: true}:                        "veth",
		{Kind: "veth", Master: "bridge", Ethernet: true}:      "bridge",
		{Kind: "veth", Master: "openvswitch", Ethernet: true}: "ovs-veth",
		{Kind: "openvswitch", Ethernet: true}:                 "ovs-internal",
		{Kind: "macvlan", Ethernet: true}:                     "macvlan",
		{Kind: "ipvlan", Ethernet: true}:                      "ipvlan-l2",
		{Kind: "ipvlan", Ethernet: true, Layer3: true}:        "ipvlan-l3",
		{Kind: "tun", Ethernet: true}:                         "tap",
		{Kind: "tun"}:                                         "tun",
		{}:                                                    "",
	} {
		mode := ModeOf(seen)
		testkit.Check(t, mode == want, "%+v: %q, want %q", seen, mode, want)
	}
}

// TestMAC gives a pod's device an address, has Check notice another one, and has modes refuse that can't.
func TestMAC(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		pod.MAC = net.HardwareAddr{2, 0, 0, 0, 0x10, 0xaa}
		if slices.Contains(append(allInLayer3(), allIPVLAN()...), mode.Name()) {
			before := describe(t, f.network.Host, pod.Namespace)
			_, err := mode.Create(f.network, pod)
			testkit.Fails(t, err, "link mode "+mode.Name())
			nothingLeft(t, before, describe(t, f.network.Host, pod.Namespace))
			return
		}
		f.create(t, pod)
		have := findDevice(t, pod.Namespace, pod.IfName).MAC
		testkit.Check(t, slices.Equal(have, pod.MAC) && slices.Equal(f.links[0].MAC, pod.MAC),
			"the device has %v, the attachment %v", have, f.links[0].MAC)
		testkit.Succeed(t, mode.Check(f.network, pod))
		echoToHost(t, f)
		other := pod
		other.MAC = net.HardwareAddr{2, 0, 0, 0, 0x10, 0xbb}
		testkit.Fails(t, mode.Check(f.network, other), "has MAC address 02:00:00:00:10:aa, not")
	})
}

func TestMain(m *testing.M) { os.Exit(testkit.CheckLeaks(m)) }
