// SPDX-License-Identifier: Apache-2.0

package kept_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	os.Exit(kept.Main(m, testkit.CheckLeaks))
}

// TestNextTestGetsIt attaches programs of each kind in one test. The next test must get the same root with these
// programs loaded, and nothing attached or stored.
func TestNextTestGetsIt(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	host, pods := testkit.Namespace(t, "host"), [2]*netns.Namespace{testkit.Namespace(t, "a"), testkit.Namespace(t, "b")}
	var specs []datapath.EndpointSpec
	for i, pod := range pods {
		outer := fmt.Sprint("pod", i)
		testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: host, Name: outer},
			rtnl.VethEnd{Namespace: pod, Name: "eth0"}, 1500))
		specs = append(specs, datapath.EndpointSpec{
			Owner: service.CLI, Namespace: pod, IfName: "eth0", Host: host,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 10, byte(10 + i)})},
		})
	}
	var root string
	var row []byte
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			if got := kept.Root(t); root != "" && got != root {
				t.Errorf("the root is %s, not %s", got, root)
			} else {
				root = got
			}
			d, err := datapath.Open(t.Context(), datapath.Options{Root: root})
			testkit.Succeed(t, err)
			defer d.Close()
			all, err := d.Endpoints().List(t.Context())
			testkit.Check(t, err == nil && len(all) == 0, "endpoints %v, %v", all, err)
			if got := filter(t, root); row != nil && !bytes.Equal(got, row) {
				t.Error("the filter is not as new, with its secret")
			} else {
				row = got
			}
			put(t, d, host, specs)
		})
	}
}

func filter(t *testing.T, root string) []byte {
	t.Helper()
	o, err := objects.Open(root)
	testkit.Succeed(t, err)
	defer o.Close()
	row, err := o.NodeState.Map.LookupBytes(uint32(0))
	testkit.Require(t, err == nil && len(bytes.Trim(row, "\x00")) != 0, "%d bytes: %v", len(row), err)
	return row
}

// put attaches programs of each kind, and stores rows.
func put(t *testing.T, d *datapath.Datapath, host *netns.Namespace, specs []datapath.EndpointSpec) {
	t.Helper()
	added := func(change datapath.Change, err error) {
		t.Helper()
		testkit.Require(t, err == nil && change == datapath.Added, "%v, %v", change, err)
	}
	_, change, err := d.Endpoints().Put(t.Context(), specs[0])
	added(change, err)
	added(d.Guards().Put(t.Context(), specs[1]))
	added(d.Uplinks().Put(t.Context(), host, "pod1"))
	added(d.Sockets().Attach(t.Context(), testkit.Cgroup(t)))
	s := service.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:80"),
		Backends: service.Backends(netip.MustParseAddrPort("192.168.10.10:80"))}
	change, _, err = d.Services().Put(t.Context(), service.CLI, s)
	added(change, err)
}
