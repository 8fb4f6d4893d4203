// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// echoOnce connects from one pod of f to the other in both families.
func echoOnce(t *testing.T, f *fixture) {
	t.Helper()
	for _, addr := range f.pods[1].Addresses {
		server := testkit.Echo(t, f.pods[1].Namespace, "tcp", netip.AddrPortFrom(addr, 0).String())
		if _, err := testkit.RoundTrip(t, f.pods[0].Namespace, "tcp", server.String(), []byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNothingLeft goes through all of a mode twice. Afterwards the host and the
// pod are as before, and the root namespace was never changed.
func TestNothingLeft(t *testing.T) {
	root := testkit.RootSnapshot(t)
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newHost(t, mode)
		pods := []Pod{f.newPod(t, 0), f.newPod(t, 1)}
		empty := devicesAndRoutes(t, f.network.Host, pods[0].Namespace, pods[1].Namespace)
		for range 2 {
			if err := mode.Setup(f.network); err != nil {
				t.Fatal(err)
			}
			f.pods, f.links = nil, nil
			for _, pod := range pods {
				f.create(t, pod)
				if err := mode.Check(f.network, pod); err != nil {
					t.Fatal(err)
				}
			}
			echoOnce(t, f)
			for _, pod := range append(pods, pods[0]) { // a second Delete is no error
				if err := mode.Delete(f.network, pod); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := mode.Teardown(f.network); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := devicesAndRoutes(t, f.network.Host, pods[0].Namespace, pods[1].Namespace); got != empty {
			t.Errorf("left behind:\n%s", difference(empty, got))
		}
	})
	if got := testkit.RootSnapshot(t); got != root {
		t.Errorf("the root namespace changed:\n%s", difference(root, got))
	}
}

// TestSetupAgain has Setup repeated under a running pod, which must not notice,
// and repair what is missing.
func TestSetupAgain(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 2)
		before := testkit.Snapshot(t, f.network.Host)
		if err := mode.Setup(f.network); err != nil {
			t.Fatal(err)
		}
		if got := testkit.Snapshot(t, f.network.Host); got != before {
			t.Errorf("a second Setup changed something:\n%s", difference(before, got))
		}
		if err := f.network.Host.SetSysctl("net/ipv4/ip_forward", "0"); err != nil {
			t.Fatal(err)
		}
		if err := mode.Check(f.network, f.pods[0]); err == nil {
			t.Error("Check did not notice that forwarding is off")
		}
		if err := mode.Setup(f.network); err != nil {
			t.Fatal(err)
		}
		if err := mode.Check(f.network, f.pods[0]); err != nil {
			t.Error(err)
		}
		echoOnce(t, f)
	})
}

// TestAttachment compares what Create says with what is there.
func TestAttachment(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 1)
		pod, link := f.pods[0], f.links[0]
		inside := findDevice(t, pod.Namespace, "eth0")
		if link.IfName != "eth0" || link.IfIndex != inside.Index || link.MAC.String() != inside.MAC.String() {
			t.Errorf("attachment %+v does not fit the pod's device %+v", link, inside)
		}
		if inside.MTU != DefaultMTU {
			t.Errorf("MTU is %d", inside.MTU)
		}
		if mode.HostSide() {
			outside := findDevice(t, f.network.Host, pod.HostIfName)
			if link.HostIfName != outside.Name || link.HostIfIndex != outside.Index ||
				link.HostMAC.String() != outside.MAC.String() || inside.PeerIndex != outside.Index {
				t.Errorf("attachment %+v does not fit the host's device %+v", link, outside)
			}
		} else if link.HostIfName != "" || link.HostIfIndex != 0 || link.HostMAC != nil {
			t.Errorf("attachment %+v has a host's device", link)
		}
		echoToHost(t, f)
		withHandle(t, pod.Namespace, func(s side) error {
			neighbours, err := s.NeighList(inside.Index, netlink.FAMILY_V4)
			for _, n := range neighbours {
				if n.HardwareAddr.String() == link.NodeMAC.String() {
					return err
				}
			}
			t.Errorf("the pod's next hop is none of %v, but the attachment says %v", neighbours, link.NodeMAC)
			return err
		})
	})
}

func echoToHost(t *testing.T, f *fixture) {
	t.Helper()
	server := testkit.Echo(t, f.network.Host, "tcp", f.network.Gateways[0].Addr().String()+":0")
	if _, err := testkit.RoundTrip(t, f.pods[0].Namespace, "tcp", server.String(), []byte("hello")); err != nil {
		t.Fatal(err)
	}
}

// TestDeleteAfterNamespace deletes the link of a pod whose namespace has gone,
// and uses its names and addresses again.
func TestDeleteAfterNamespace(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 2)
		gone := f.pods[1]
		if err := nl.DeleteNamespace(gone.Namespace.Name()); err != nil {
			t.Fatal(err)
		}
		if err := gone.Namespace.Close(); err != nil {
			t.Fatal(err)
		}
		awaitGone(t, f, f.links[1])
		gone.Namespace = nil
		for range 2 {
			if err := mode.Delete(f.network, gone); err != nil {
				t.Fatal(err)
			}
		}
		again := f.newPod(t, 1)
		f.pods = f.pods[:1]
		f.create(t, again)
		echoOnce(t, f)
	})
}

// awaitGone returns when the kernel, which takes its time to end a namespace, has
// removed a device from the uplink that it sat on, if it did.
func awaitGone(t *testing.T, f *fixture, link Attachment) {
	t.Helper()
	if f.mode.HostSide() {
		return // Delete removes it from the host at once
	}
	uplink := findDevice(t, f.network.Host, uplinkName)
	testkit.Eventually(t, 5*time.Second, func() (err error) {
		withHandle(t, f.network.Host, func(s side) error {
			entries, listErr := s.NeighList(uplink.Index, unix.AF_BRIDGE)
			for _, entry := range entries {
				if entry.HardwareAddr.String() == link.MAC.String() {
					err = fmt.Errorf("%v is still on the uplink", link.MAC)
				}
			}
			return listErr
		})
		return err
	})
}

// TestAddressMoves plugs in a new pod with the address of one that has gone,
// which others on the network have been talking to.
func TestAddressMoves(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 2)
		echoOnce(t, f)
		if err := mode.Delete(f.network, f.pods[1]); err != nil {
			t.Fatal(err)
		}
		f.pods = f.pods[:1]
		f.create(t, f.newPod(t, 1))
		echoOnce(t, f)
	})
}

// TestDeleteSparesOthers refuses to delete a device that Create never made.
func TestDeleteSparesOthers(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newHost(t, mode)
		pod := f.newPod(t, 0)
		addBridge(t, f.network.Host, pod.HostIfName)
		addBridge(t, pod.Namespace, pod.IfName)
		if err := mode.Delete(f.network, pod); err == nil || !strings.Contains(err.Error(), "not ours") {
			t.Errorf("error is %v", err)
		}
		findDevice(t, f.network.Host, pod.HostIfName)
		findDevice(t, pod.Namespace, pod.IfName)
	})
}

func addBridge(t *testing.T, ns *nl.Namespace, name string) {
	t.Helper()
	withHandle(t, ns, func(s side) error { return s.LinkAdd(&netlink.Bridge{LinkAttrs: attrs(name)}) })
}

func findDevice(t *testing.T, ns *nl.Namespace, name string) nl.Device {
	t.Helper()
	found, err := ns.Device(name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// devicesAndRoutes describes what Create and Setup may add to namespaces.
func devicesAndRoutes(t *testing.T, namespaces ...*nl.Namespace) string {
	t.Helper()
	var all strings.Builder
	for _, ns := range namespaces {
		snapshot := testkit.Snapshot(t, ns)
		for line := range strings.Lines(snapshot) {
			// The settings of the whole namespace stay. One of them, forwarding, gives
			// each of its devices an anycast address.
			if !strings.HasPrefix(line, "net/") && !strings.HasPrefix(line, "anycast ") {
				all.WriteString(line)
			}
		}
	}
	return all.String()
}

// difference lists the lines that are in one snapshot only.
func difference(before, after string) string {
	var out strings.Builder
	only := func(sign, in, other string) {
		lines := map[string]bool{}
		for line := range strings.Lines(other) {
			lines[line] = true
		}
		for line := range strings.Lines(in) {
			if !lines[line] {
				out.WriteString(sign + line)
			}
		}
	}
	only("-", before, after)
	only("+", after, before)
	return out.String()
}

// TestLookup finds each mode by its name, and names them all for another.
func TestLookup(t *testing.T) {
	for _, mode := range Modes() {
		found, err := Lookup(mode.Name())
		if err != nil || found != mode {
			t.Errorf("Lookup(%q) = %v, %v", mode.Name(), found, err)
		}
	}
	_, err := Lookup("token-ring")
	var unknown *UnknownModeError
	if !errors.As(err, &unknown) || unknown.Name != "token-ring" || len(unknown.Known) != len(Modes()) {
		t.Errorf("error is %v", err)
	}
	for _, mode := range Modes() {
		if !strings.Contains(err.Error(), mode.Name()) {
			t.Errorf("error %q does not name %s", err, mode.Name())
		}
	}
}

// TestProbe tells a missing kernel feature from other failures, and leaves no
// namespace.
func TestProbe(t *testing.T) {
	testkit.RequireRoot(t)
	err := probe("fancy", needsVeth(), requirement{
		feature: "fancy devices", module: "fancy", since: "99.1",
		try: func(s side) error {
			return s.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs("probe2"), LinkType: "mst-fancy"})
		},
	})
	var unsupported *UnsupportedError
	if !errors.As(err, &unsupported) {
		t.Fatalf("error is %v", err)
	}
	for _, part := range []string{"fancy devices", "module fancy", "Linux 99.1", kernelRelease()} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not contain %q", err, part)
		}
	}
	err = probe("broken", requirement{feature: "x", try: func(side) error { return fs.ErrPermission }})
	if errors.As(err, &unsupported) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error is %v", err)
	}
}

// TestNoTransientPeer watches the host while pods come and go: apart from
// its own devices nothing may appear in it, not even for a moment.
func TestNoTransientPeer(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		updates, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
		err := f.network.Host.Do(func() error { return netlink.LinkSubscribe(updates, done) })
		if err != nil {
			t.Fatal(err)
		}
		f.create(t, pod)
		if err := mode.Delete(f.network, pod); err != nil {
			t.Fatal(err)
		}
		addBridge(t, f.network.Host, "sentinel")
		ours := map[string]bool{
			"lo": true, uplinkName: true, "wire": true, DefaultBridge: true, HostSlave: true, pod.HostIfName: mode.HostSide(),
		}
		deadline := time.After(5 * time.Second)
		for {
			select {
			case update := <-updates:
				name := update.Attrs().Name
				if name == "sentinel" {
					close(done)
					return
				}
				if !ours[name] {
					t.Errorf("device %q appeared in the host", name)
				}
			case <-deadline:
				t.Fatal("no message for the last device")
			}
		}
	})
}
