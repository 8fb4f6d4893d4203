// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// startOpenVSwitch starts an Open vSwitch for a host that ends with the test, and returns the socket of its database.
func startOpenVSwitch(t *testing.T, host *netns.Namespace) string {
	t.Helper()
	return runOpenVSwitch(t, host, "").Socket()
}

func runOpenVSwitch(t *testing.T, host *netns.Namespace, datapath string) *ovs.Instance {
	t.Helper()
	dir := newOVSDir(t)
	s := testkit.Must(ovs.Start(host, dir, datapath))(t)
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(dir, "ovs-vswitchd.log")); t.Failed() {
			t.Logf("log of ovs-vswitchd: %v\n%s", err, log)
		}
		testkit.Succeed(t, s.Stop())
	})
	return s
}

// newOVSDir is a directory that does not exist yet. It is outside the test's own, whose path is too long for a socket.
func newOVSDir(t *testing.T) string {
	t.Helper()
	if err := ovs.FindPrograms(); err != nil {
		testkit.Skip(t, err.Error())
	}
	dir := testkit.Must(os.MkdirTemp("", "mst-ovs-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run")
}

func ovsModes() []Mode { return []Mode{newOVSPorts("ovs-veth", veth()), newOVSInternal()} }

// sharedHost is a mode of Open vSwitch with one host for all tests, one after the other. Starting an Open vSwitch
// takes longer than most tests. An unused bridge keeps its datapath, which takes long to make as well.
type sharedHost struct {
	Mode
	network Network
}

const sharedBridge = "shared" // the one that no test uses

// shareHost has all hosts that newHost makes for a mode of Open vSwitch be one.
func shareHost(t *testing.T, mode Mode) Mode {
	t.Helper()
	if mode.Traits().Needs != NeedsOpenVSwitch {
		return mode
	}
	f := newHost(t, mode)
	network := f.network
	network.Bridge = sharedBridge
	network.Gateways = nil
	withSwitch(t, network, func(s *ovs.Switch) error {
		datapath, err := s.BestDatapath(network.Host)
		if err != nil {
			return err
		}
		return s.AddBridge(ovs.BridgeSpec{Name: sharedBridge, Datapath: datapath, MAC: "02:00:00:00:00:01", MTU: DefaultMTU})
	})
	return sharedHost{mode, f.network}
}

// fixture is a fixture on the shared host, which is as new again when the test is over.
func (h sharedHost) fixture(t *testing.T) *fixture {
	t.Helper()
	before := describe(t, h.network.Host)
	t.Cleanup(func() {
		withSwitch(t, h.network, func(s *ovs.Switch) error {
			var errs []error
			for name := range strings.FieldsSeq(vsctl(t, h.network, "list-br")) {
				if name != sharedBridge {
					bridge, err := s.Bridge(name)
					if err == nil {
						err = s.DeleteBridge(bridge)
					}
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		})
		withHandle(t, h.network.Host, func(host nsHandle) error {
			links, err := rtnl.Dump(host.LinkList)
			for _, link := range links {
				switch name := link.Attrs().Name; name {
				case "lo", uplinkName, "wire", sharedBridge, "ovs-system", "ovs-netdev":
				default:
					if err == nil {
						err = host.LinkDel(link)
					}
					if errors.Is(err, unix.ENODEV) {
						err = nil // Open vSwitch was faster
					}
				}
			}
			return err
		})
		for _, s := range forwardingSettings(h.network.Gateways) {
			testkit.Succeed(t, rtnl.In(h.network.Host).SetSysctl(s.Key, "0"))
		}
		got := describe(t, h.network.Host)
		testkit.Check(t, got == before, "the shared host is not as before:\n%s", difference(before, got))
	})
	network := h.network
	network.Gateways = slices.Clone(network.Gateways)
	return &fixture{mode: h.Mode, network: network, large: true, stopRelay: map[string]func(){}}
}

// withSwitch runs fn with a connection to the database of a network's Open vSwitch.
func withSwitch(t *testing.T, network Network, fn func(s *ovs.Switch) error) {
	t.Helper()
	s := testkit.Must(openSwitch(network))(t)
	defer s.Close()
	testkit.Succeed(t, fn(s))
}

// vsctl changes the database of a network's Open vSwitch with ovs-vsctl.
func vsctl(t *testing.T, network Network, args ...string) string {
	t.Helper()
	testkit.RequireTool(t, "ovs-vsctl")
	cmd := exec.Command("ovs-vsctl", append([]string{"--db=unix:" + network.OVSDB}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr // it warns there of a slow machine
	output, err := cmd.Output()
	testkit.Require(t, err == nil, "ovs-vsctl %v: %v\n%s", args, err, &stderr)
	return string(output)
}

// inOVS changes the database of Open vSwitch with ovs-vsctl.
func inOVS(args ...string) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) { vsctl(t, f.network, args...) }
}

func allOVS() []string { return []string{"ovs-veth", "ovs-internal"} }

func deviationsOfOVS() []deviation {
	veth := []string{"ovs-veth"}
	return []deviation{
		{"no port", allOVS(), inOVS("del-port", "msta"), `port "msta" is missing in the database`},
		{"port of another bridge", allOVS(), func(_ *testing.T, f *fixture) {
			f.network.Bridge = sharedBridge
		}, `port "msta" of Open vSwitch is not on bridge "shared"`},
		{"no bridge", allOVS(), inOVS("del-br", DefaultBridge), `bridge "mst0" is missing in the database`},
		{"port does not work", allOVS(), inOVS("--no-wait", "set", "Interface", "msta", `error="it is broken"`),
			`port "msta" of Open vSwitch: it is broken`},
		{"bridge is down", allOVS(), inHost(DefaultBridge, down), `device "mst0" in`},
		{"gateway", allOVS(), inHost(DefaultBridge, removeAddr("fd00:10::1/64")), "lacks address fd00:10::1/64"},
		{"port is down", veth, inHost("msta", down), `device "msta" in`},
		{"port has IPv6", veth, setSysctl(true, "net/ipv6/conf/msta/disable_ipv6", "0"), "msta/disable_ipv6 in"},
		{"port answers ARP", veth, setSysctl(true, "net/ipv4/conf/msta/arp_ignore", "0"), "msta/arp_ignore in"},
	}
}

// TestOVSSetupFails has Setup fail, and compares the host before and after.
func TestOVSSetupFails(t *testing.T) {
	rows := []struct {
		name    string
		arrange func(s *situation)
		message string
	}{
		{"no Open vSwitch", func(s *situation) { s.f.network.OVSDB = "" }, "no Open vSwitch"},
		{"no database", func(s *situation) { s.f.network.OVSDB = "/nonexistent/db.sock" }, "/nonexistent/db.sock"},
		{"bridge's name is taken", func(s *situation) { s.f.network.Bridge = uplinkName }, `device "eth0" in`},
		{"bridge's name is a port's", func(s *situation) {
			vsctl(s.t, s.f.network, "--no-wait", "add-port", sharedBridge, "absent")
			s.f.network.Bridge = "absent"
		}, "constraint violation"},
		{"bridge's name is too long", func(s *situation) { s.f.network.Bridge = "sixteen-letters-" }, "more than"},
		{"MTU too large", func(s *situation) { s.f.network.MTU = 70000 }, "MTU 70000"},
		{"no gateways", func(s *situation) { s.f.network.Gateways = nil }, "no gateways"},
		{"two gateways of a family", func(s *situation) {
			s.f.network.Gateways = append(s.f.network.Gateways, s.f.network.Gateways[0])
		},
			"second one of its family"},
	}
	testkit.RequireRoot(t)
	for _, mode := range ovsModes() {
		testkit.RequireMode(t, mode.Probe())
		mode = shareHost(t, mode)
		for _, row := range rows {
			t.Run(mode.Name()+"/"+row.name, func(t *testing.T) {
				newHost(t, mode).setupFails(t, row.arrange, row.message)
			})
		}
	}
}

// TestOVSAway stops ovs-vswitchd: Create and Setup fail with one error each and leave nothing, and Delete needs no
// answer.
func TestOVSAway(t *testing.T) {
	testkit.RequireRoot(t)
	for _, mode := range ovsModes() {
		t.Run(mode.Name(), func(t *testing.T) {
			t.Parallel()
			testkit.RequireMode(t, mode.Probe())
			f := newFixture(t, mode, 1)
			ports := func() string { return vsctl(t, f.network, "list-ports", DefaultBridge) }
			signal := func(s syscall.Signal) {
				text := testkit.Must(os.ReadFile(filepath.Join(filepath.Dir(f.network.OVSDB), "ovs-vswitchd.pid")))(t)
				pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
				if err == nil {
					err = syscall.Kill(pid, s)
				}
				testkit.Succeed(t, err)
			}
			signal(syscall.SIGSTOP)
			_, err := mode.Create(f.network, f.newPod(t, 1))
			testkit.Check(t, err != nil && strings.Count(err.Error(), "ovs-vswitchd has applied") == 1, "Create says %v", err)
			left := ports()
			testkit.Check(t, left == "msta\n", "after Create, the ports are %q", left)
			testkit.Succeed(t, mode.Delete(f.network, f.pods[0]))
			left = ports()
			testkit.Check(t, left == "", "after Delete, the ports are %q", left)
			network := f.network
			network.Bridge = "mst1"
			err = mode.Setup(network)
			testkit.Check(t, err != nil && strings.Count(err.Error(), "ovs-vswitchd has applied") == 1, "Setup says %v", err)
			bridges := vsctl(t, f.network, "list-br")
			testkit.Check(t, bridges == DefaultBridge+"\n", "after Setup, the bridges are %q", bridges)
			signal(syscall.SIGKILL)
			err = mode.Delete(f.network, f.pods[0])
			testkit.Check(t, err == nil, "Delete again: %v", err)
		})
	}
}
