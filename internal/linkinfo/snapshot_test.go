// SPDX-License-Identifier: Apache-2.0

package linkinfo_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/internal/linkinfo"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// unnamed makes a namespace without a name, with a veth end eth0 in it whose other end is in host.
func unnamed(t *testing.T, host *netns.Namespace, device string) *netns.Namespace {
	t.Helper()
	ns := testkit.Must(netns.New())(t)
	t.Cleanup(func() { _ = ns.Close() })
	err := rtnl.AddVeth(rtnl.VethEnd{Namespace: host, Name: device}, rtnl.VethEnd{Namespace: ns, Name: "eth0"}, 1500)
	testkit.Succeed(t, err)
	return ns
}

// TestPeerNamespaces names the namespaces of peers: by name, by process, by id.
func TestPeerNamespaces(t *testing.T) {
	host, named := testkit.Namespace(t, "host"), testkit.Namespace(t, "named")
	err := rtnl.AddVeth(rtnl.VethEnd{Namespace: host, Name: "to-name"}, rtnl.VethEnd{Namespace: named, Name: "eth0"}, 1500)
	testkit.Succeed(t, err)
	busy := unnamed(t, host, "to-process")
	unnamed(t, host, "to-nobody")
	cmd := exec.Command("cat")
	stdin := testkit.Must(cmd.StdinPipe())(t)
	testkit.Succeed(t, busy.Start(cmd))
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	// Once it answers it has become cat.
	_, err = io.WriteString(stdin, "x")
	testkit.Require(t, err == nil, "%v", err)
	testkit.Eventually(t, 5*time.Second, func() error {
		if peer := survey(t, host)["to-process"].Peer; peer == nil || peer.Namespace == nil ||
			peer.Namespace.Command != "cat" {
			return fmt.Errorf("peer is %+v", peer)
		}
		return nil
	})
	links := survey(t, host)
	for device, want := range map[string]string{
		"to-name":    named.Name(),
		"to-process": fmt.Sprintf("pid %d (cat)", cmd.Process.Pid),
		"to-nobody":  "nsid ",
	} {
		peer := links[device].Peer
		if peer == nil || peer.Name != "eth0" || peer.Kind != "veth" || peer.Namespace == nil ||
			!strings.HasPrefix(peer.Namespace.String(), want) {
			t.Errorf("the peer of %s is %+v in %v, want eth0 in %s", device, peer, peer.Namespace, want)
		}
	}
	l := links["lo"]
	testkit.Check(t, l.Peer == nil && l.Parent == nil, "loopback device is %+v", l)
}

// TestPeerHere has both ends in one namespace.
func TestPeerHere(t *testing.T) {
	a := testkit.Namespace(t, "a")
	ip(t, a, a, "-n A link add v0 type veth peer name v1")
	links := survey(t, a)
	peer := links["v0"].Peer
	testkit.Check(t, peer != nil && peer.Name == "v1" && peer.Namespace == nil, "peer is %+v", peer)
}

// TestParentElsewhere puts a macvlan device into another namespace than its parent, and looks from both.
func TestParentElsewhere(t *testing.T) {
	host, pod, other := testkit.Namespace(t, "host"), testkit.Namespace(t, "pod"), testkit.Namespace(t, "other")
	for _, ns := range []*netns.Namespace{host, other} { // the same indexes in both
		ip(t, ns, pod, "-n A link add up0 type veth peer name up1")
	}
	ip(t, host, pod, "-n A link add link up0 name eth0 netns B type macvlan mode bridge")
	eth0 := survey(t, pod)["eth0"]
	if eth0.Parent == nil || eth0.Parent.Name != "up0" || eth0.Parent.Namespace == nil ||
		eth0.Parent.Namespace.Name != host.Name() {
		t.Errorf("parent is %+v", eth0.Parent)
	}
	links := survey(t, host)
	children := links["up0"].Children
	if len(children) != 1 || children[0].Name != "eth0" || children[0].Kind != "macvlan" || children[0].Mode != "bridge" ||
		children[0].Index != eth0.Index || children[0].Namespace.Name != pod.Name() {
		t.Errorf("children are %+v", children)
	}
	others := append(links["up1"].Children, survey(t, other)["up0"].Children...)
	testkit.Check(t, len(others) == 0, "devices with no children have %+v", others)
}

// TestSnapshotInfo checks how namespaces are identified.
func TestSnapshotInfo(t *testing.T) {
	named := testkit.Namespace(t, "named")
	current := testkit.Must(netns.Current())(t)
	defer current.Close()
	nobody := testkit.Must(netns.New())(t)
	defer nobody.Close()
	census := testkit.Must(linkinfo.Take())(t)
	defer census.Close()
	inode := testkit.Must(nobody.Inode())(t)
	for ns, want := range map[*netns.Namespace]string{
		named: named.Name(), current: linkinfo.RootName, nobody: fmt.Sprintf("inode %d", inode),
	} {
		place, err := census.Info(ns)
		testkit.Check(t, err == nil && place.String() == want, "place is %v, %v, want %s", place, err, want)
	}
}

// TestNamespaceInfoString prefers the most useful name.
func TestNamespaceInfoString(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for want, place := range map[string]linkinfo.NamespaceInfo{
		"pod":                            {Name: "pod", PID: 7, Command: "x", Container: id, NSID: 3, Inode: 9},
		"container 0123456789ab (pid 7)": {PID: 7, Command: "x", Container: id, NSID: 3, Inode: 9},
		"pid 7 (x)":                      {PID: 7, Command: "x", NSID: 3, Inode: 9},
		"nsid 3":                         {NSID: 3, Inode: 9},
		"inode 9":                        {NSID: -1, Inode: 9},
	} {
		testkit.Check(t, place.String() == want, "%+v is called %q, not %q", place, place.String(), want)
	}
}

// TestDrawHostileNames draws devices, programs and namespaces with names that are markup, or no text: pods choose them.
func TestDrawHostileNames(t *testing.T) {
	for _, name := range []string{`</text><script>"'&`, "a\x01b", "a\xffb", "a\x1b[2J", "]]>", "\ufffe"} {
		links := []linkinfo.Link{
			{Device: rtnl.Device{Index: 1, Name: name, Kind: name}, Mode: name,
				Programs: []linkinfo.Program{{Hook: name, Name: name}}},
			{Device: rtnl.Device{Index: 2, Name: "port", MasterIndex: 1}, Master: name},
		}
		all := []linkinfo.Inventory{{Namespace: linkinfo.NamespaceInfo{Name: name, Inode: 1}, Links: links}}
		var out strings.Builder
		testkit.Succeed(t, linkinfo.WriteSVG(&out, all))
		decoder := xml.NewDecoder(strings.NewReader(out.String()))
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%q: %v", name, err)
				break
			}
			e, ok := token.(xml.StartElement)
			testkit.Check(t, !ok || e.Name.Local != "script", "%q is markup of the drawing", name)
		}
	}
}
