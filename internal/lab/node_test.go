// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func node(disk string) lab.Options {
	return lab.Options{Topology: lab.TopologyNode, Link: lab.LinkHost, Disk: disk}
}

// useNode makes a pod of a node, and writes where plugins do.
func useNode(l *lab.Lab) (*netns.Namespace, error) {
	dirs := l.PluginDirs()
	for _, dir := range []string{dirs.State, dirs.Run} {
		if err := os.WriteFile(filepath.Join(dir, "10.0.0.2"), nil, 0o600); err != nil {
			return nil, err
		}
	}
	return l.AddPod(lab.PodA)
}

func TestNode(t *testing.T) {
	s, disk := store(t), t.TempDir()
	before := testkit.RootSnapshot(t)
	l := testkit.Must(s.Up(t.Context(), options(node(disk))))(t)
	pod := testkit.Must(useNode(l))(t)
	devices, err := rtnl.In(pod).Devices()
	testkit.Check(t, err == nil && devices[0].Name == "lo" && devices[0].Up, "a pod has %v, %v", devices, err)
	dirs := l.PluginDirs()
	testkit.Check(t, filepath.Dir(dirs.State) == disk && strings.HasPrefix(dirs.Run, s.Dir), "directories %+v", dirs)
	_, err = l.AddPod(lab.PodA)
	testkit.Check(t, err != nil, "a second pod of that name")
	err = errors.Join(l.DeletePod(lab.Host), l.DeletePod("nobody"))
	testkit.Check(t, err != nil && strings.Count(err.Error(), "no pod") == 2, "delete what is no pod: %v", err)
	if err := l.DeletePod(lab.PodA); err != nil || slices.Contains(l.Places(), lab.PodA) {
		t.Errorf("delete a pod: %v, places %v", err, l.Places())
	}
	known, err := l.PluginPods()
	testkit.Check(t, err == nil && len(known.Endpoints)+len(known.Sockets) == 0, "pods %v, %v of no datapath", known, err)
	err = l.Close()
	testkit.Check(t, err == nil, "%v", err)
	wantEmpty(t, disk)
	wantEmpty(t, s.Dir+"/labs")
	testkit.Check(t, testkit.RootSnapshot(t) == before, "the root namespace is not as it was")
}

// TestNodeWithoutDisk keeps state beside the lab's record.
func TestNodeWithoutDisk(t *testing.T) {
	s := store(t)
	l := up(t, s, options(node("")))
	dirs := l.PluginDirs()
	testkit.Check(t, strings.HasPrefix(dirs.State, dirs.Run), "directories %+v", dirs)
	_, err := up(t, s, options(lab.Options{Link: "veth"})).AddPod("another")
	testkit.Check(t, err != nil, "a lab with pods gets another")
}

var labs atomic.Int64

func options(o lab.Options) lab.Options {
	o.Name = fmt.Sprintf("test-%d-%d", os.Getpid(), labs.Add(1))
	if o.Topology == "" && o.File == nil {
		o.Topology = "pod-links"
	}
	return o
}

func store(t *testing.T) lab.Store {
	t.Helper()
	testkit.RequireRoot(t)
	return lab.Store{Dir: t.TempDir() + "/state"}
}

func up(t *testing.T, s lab.Store, o lab.Options) *lab.Lab {
	t.Helper()
	l := testkit.Must(s.Up(context.Background(), o))(t)
	t.Cleanup(func() {
		err := l.Close()
		testkit.Check(t, err == nil, "%v", err)
	})
	if l.OVSDatapath() == lab.OVSUserSpace {
		testkit.NeedsOther(t)
	}
	return l
}

func place(t *testing.T, l *lab.Lab, name string) *netns.Namespace {
	t.Helper()
	return testkit.Must(l.Namespace(name))(t)
}

// TestRootUntouched compares all of the root namespace before and after.
func TestRootUntouched(t *testing.T) {
	s := store(t)
	before := testkit.RootSnapshot(t)
	for name, o := range map[string]lab.Options{
		"ebpf": {Link: "veth", Datapath: lab.DatapathEBPF}, "iptables": {Link: "bridge", NetfilterCall: true,
			Via: lab.ViaIPTables},
		"nftables": {Link: "macvlan", Via: lab.ViaNFTables}, "file": {File: ofFile(t, files["chain"]).File},
	} {
		l := testkit.Must(s.Up(context.Background(), options(o)))(t)
		during := testkit.RootSnapshot(t)
		testkit.Check(t, during == before, "%s changed the root namespace: %s", name, firstDifference(before, during))
		testkit.Succeed(t, l.Close())
	}
	after := testkit.RootSnapshot(t)
	testkit.Check(t, after == before, "labs left something in the root namespace: %s", firstDifference(before, after))
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%q became %q", x[i], y[i])
		}
	}
	return fmt.Sprintf("%d lines became %d", len(x), len(y))
}

// TestPodToHostDatapath checks that the pod's packets to another host and back pass the programs of the lab's datapath.
func TestPodToHostDatapath(t *testing.T) {
	o := options(lab.Options{Topology: lab.TopologyPodToHost, Link: "veth", Datapath: lab.DatapathEBPF})
	l := up(t, store(t), o)
	endpoints := testkit.Must(l.Datapath().Endpoints().List(t.Context()))(t)
	testkit.Check(t, len(endpoints) == 2, "endpoints are %+v, want both addresses of pod-b", endpoints)
	for _, addr := range lab.Addresses(o, lab.HostA) {
		before := counters(t, l)
		server := testkit.Echo(t, place(t, l, lab.HostA), "tcp", netip.AddrPortFrom(addr, 0).String())
		_, err := testkit.RoundTrip(t, place(t, l, lab.PodB), "tcp", server.String(), make([]byte, 1<<18))
		testkit.Require(t, err == nil, "%v", err)
		after := counters(t, l)
		for _, name := range []string{"from_pod", "to_pod", "passed"} {
			testkit.Check(t, after[name] >= before[name]+5,
				"%v: counter %s went from %d to %d", addr, name, before[name], after[name])
		}
		testkit.Check(t, after["forward"] == 0 && after["drop_malformed"] == 0,
			"%v: counters are %v, but there is no service", addr, after)
	}
}

func counters(t *testing.T, l *lab.Lab) map[string]uint64 {
	t.Helper()
	all := testkit.Must(l.Datapath().Flows().Counters())(t)
	out := map[string]uint64{}
	for _, counter := range all {
		out[counter.Name] = counter.Packets
	}
	return out
}
