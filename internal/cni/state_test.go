// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/cni/netconf"
	"mustang/internal/datapath"
	"mustang/internal/ipam"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// loss is a part of an attachment that is lost before DEL.
type loss struct {
	name string
	do   func(*fixture, *pod)
}

func losses() []loss {
	return []loss{
		{"namespace", func(f *fixture, p *pod) {
			f.must(netns.Delete(p.Name()))
			f.must(p.Close())
		}},
		{"records", func(f *fixture, _ *pod) { f.must(os.RemoveAll(f.plugin.RunDir)) }},
		{"leases", func(f *fixture, _ *pod) { f.must(os.RemoveAll(f.plugin.StateDir)) }},
		{"device", func(f *fixture, p *pod) {
			if _, err := rtnl.In(p.Namespace).Device("eth0"); err == nil {
				testkit.Command(f.t, p.Namespace, "ip link del eth0")
			}
		}},
		{"pins", func(f *fixture, _ *pod) { f.must(os.RemoveAll(f.plugin.BPFRoot)) }},
		{"configuration", func(_ *fixture, p *pod) { // it has changed since ADD, to one that ADD would refuse
			p.request.Config = []byte(strings.Replace(string(p.request.Config), `"link"`, `"more":1,"link"`, 1))
		}},
		{"path", func(_ *fixture, p *pod) { p.request.Netns = "" }},
	}
}

// TestDelOfLost runs DEL without one part, and without all. It succeeds twice and leaves
// nothing, and ADD works after it.
func TestDelOfLost(t *testing.T) {
	t.Parallel()
	eachName(t, crashModes, newSocketFixture, func(t *testing.T, f *fixture, mode string) {
		f.must(f.del(f.added("first", everything(mode))))
		all := losses()
		for _, one := range all {
			t.Run(one.name, func(t *testing.T) { f.in(t).delOfLost(mode, one) })
		}
		everything := []loss{all[1], all[2], all[3], all[0], all[4], all[5], all[6]} // the device goes before its namespace
		t.Run("all", func(t *testing.T) { f.in(t).delOfLost(mode, everything...) })
	})
}

func (f *fixture) delOfLost(mode string, losses ...loss) {
	before := f.left()
	p := f.added("a", everything(mode))
	for _, l := range losses {
		l.do(f, p)
	}
	for range 2 {
		f.must(f.del(p))
	}
	f.nothingMore(before)
	again := f.added("a", everything(mode))
	f.checkAndDelete(again)
	f.nothingMore(before)
}

// nothingMore fails the test if there is more state than before. Less is allowed. Pins have
// other names after the datapath was created again.
func (f *fixture) nothingMore(before []string) {
	f.t.Helper()
	for _, line := range f.more(before) {
		f.t.Error("left is", line)
	}
}

func (f *fixture) more(before []string) []string {
	f.t.Helper()
	return slices.DeleteFunc(f.left(), func(line string) bool {
		return slices.Contains(before, line) || strings.HasPrefix(line, "hosts ") || strings.Contains(line, "/links/")
	})
}

// TestDelOfNothing runs DEL without ADD, in each mode: it creates nothing.
func TestDelOfNothing(t *testing.T) {
	f := newBareFixture(t)
	before := f.left()
	for _, mode := range append([]string{netconf.LinkAuto}, crashModes...) {
		p := f.pod("a", everything(mode))
		f.must(f.del(p))
		p.request.Netns = "/run/netns/nobody's"
		f.must(f.del(p))
		f.same(before, mode)
	}
	for _, dir := range []string{f.plugin.BPFRoot, filepath.Join(f.plugin.StateDir, "net")} {
		_, err := os.Stat(dir)
		testkit.Check(t, errors.Is(err, fs.ErrNotExist), "DEL made %s", dir)
	}
}

// TestDelOfNonsense runs DEL with a configuration that has become invalid.
func TestDelOfNonsense(t *testing.T) {
	t.Parallel()
	f := newSocketFixture(t)
	f.must(f.del(f.added("first", everything("veth"))))
	for _, change := range [][2]string{
		{`"link":"veth"`, `"link":"tap"`}, {`"link":"veth"`, `"link":5`}, {`"services":"tc"`, `"services":"all"`},
		{`"subnet":"10.`, `"subnet":"910.`}, {`"ranges"`, `"rangers"`}, {`"ipam":`, `"ipan":`},
		{`"masquerade":true`, `"masquerade":"x"`},
	} {
		for _, recorded := range []bool{true, false} {
			before := f.left()
			p := f.added("a", everything("veth"))
			config := string(p.request.Config)
			testkit.Require(t, strings.Contains(config, change[0]), "%s lacks %s", config, change[0])
			p.request.Config = []byte(strings.Replace(config, change[0], change[1], 1))
			if !recorded {
				f.must(os.RemoveAll(f.plugin.RunDir))
			}
			if err := f.del(p); err != nil {
				t.Errorf("%s, with record: %v: %v", change[1], recorded, err)
			} else if after := f.left(); !slices.Equal(before, after) {
				t.Errorf("%s, with record: %v\nbefore %q\nafter  %q", change[1], recorded, before, after)
				f.dropServices()
			}
			p.request.Config = []byte(config)
			f.must(f.del(p))
		}
	}
}

// TestReboot lets the machine boot with all addresses given out: they are all free again, for the same pods and others.
func TestReboot(t *testing.T) {
	for _, kept := range []string{"addresses", "addresses and records"} {
		t.Run(kept, func(t *testing.T) {
			t.Parallel()
			f := newBareFixture(t)
			config := []byte(strings.NewReplacer("10.113.0.0/24", "10.113.0.0/29", "fd00:113::/64", "fd00:113::/125").
				Replace(string(network("net", "veth", ""))))
			ids := []string{"a", "b", "c", "d", "e"}
			for _, id := range ids {
				f.added(id, config)
			}
			f.oneLine(f.add(f.pod("f", config)), "no free address")
			f = f.booted(kept == "addresses and records")
			f.must(f.status(config))
			gone := f.pod("d", config) // the runtime cleans up after the boot
			f.must(f.del(gone))
			var given []netip.Addr
			for _, id := range []string{"c", "a", "g", "h", "b"} {
				p := f.added(id, config)
				f.must(f.check(p))
				given = append(given, p.ips()...)
				f.reach(f.host, p.Namespace, p.ips()[0])
			}
			slices.SortFunc(given, netip.Addr.Compare)
			given = slices.Compact(given)
			testkit.Check(t, len(given) == 10, "given out are %v", given)
			f.must(f.gc(config))
			leases, err := filepath.Glob(f.plugin.StateDir + "/net/[1-9a-f]*")
			testkit.Check(t, err == nil && len(leases) == 0, "left are %q, %v", leases, err)
		})
	}
}

// booted is a host with an empty kernel and the files of an earlier boot of f.
func (f *fixture) booted(records bool) *fixture {
	f.t.Helper()
	boot := ipam.BootID()
	earlier := "00000000" + boot[8:]
	stamped := 0
	for _, dir := range []string{f.plugin.StateDir, f.plugin.RunDir} {
		f.must(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(data), boot) {
				return err
			}
			stamped++
			return os.WriteFile(path, []byte(strings.ReplaceAll(string(data), boot, earlier)), 0o600)
		}))
	}
	testkit.Require(f.t, stamped >= 10, "only %d files tell the boot", stamped)
	next := newBareFixture(f.t)
	next.plugin.StateDir = f.plugin.StateDir
	if records {
		next.plugin.RunDir = f.plugin.RunDir
	}
	return next
}

func (f *fixture) status(config []byte) error {
	return f.host.Do(func() error { return f.plugin.Status(f.t.Context(), Request{Config: config}) })
}

// TestAddTwice runs ADD for an existing attachment: an error, and nothing changes.
func TestAddTwice(t *testing.T) {
	eachName(t, crashModes, newSocketFixture, func(t *testing.T, f *fixture, mode string) {
		p := f.added("a", everything(mode))
		before := f.left()
		twice := *p
		f.oneLine(f.add(&twice), "interface eth0 of container a", "already")
		elsewhere := f.pod("b", everything(mode))
		elsewhere.request.ContainerID = "a"
		f.oneLine(f.add(elsewhere), "interface eth0 of container a", "already")
		another := *p
		another.request.ContainerID = "c"
		f.oneLine(f.add(&another), `"eth0"`, "already")
		f.same(before, "refused ADDs")
		f.must(f.check(p))
		f.reach(f.host, p.Namespace, p.ips()[0])
		f.must(f.del(&another)) // a runtime has DEL follow an ADD that failed
		f.checkAndDelete(p)
		_, err := rtnl.In(p.Namespace).Device("eth0")
		testkit.Check(t, err != nil, "the pod has its device still")
	})
}

// TestTwoInterfaces attaches a pod to two networks.
func TestTwoInterfaces(t *testing.T) {
	eachName(t, crashModes, newFixture, func(t *testing.T, f *fixture, mode string) {
		other := map[string]string{"veth": "veth", "bridge": "bridge", "macvlan": "veth"}[mode] // one parent has one network
		one, two := network("net", mode, ""), network("second", other, `,"bridge":"mst1"`)
		a, peer := f.added("a", one), f.added("peer", two)
		second := *a
		second.request.IfName, second.request.Config = "eth1", two
		f.must(f.add(&second))
		f.must(f.check(a))
		f.must(f.check(&second))
		for _, r := range second.result.Routes {
			ones, _ := r.Dst.Mask.Size()
			testkit.Check(t, ones != 0, "a second default route: %v", r)
		}
		for _, ip := range append(a.ips(), second.ips()...) {
			f.reach(f.host, a.Namespace, ip)
		}
		for _, ip := range peer.ips() {
			f.reach(a.Namespace, peer.Namespace, ip)
		}
		f.must(f.del(&second))
		f.must(f.check(a))
		f.reach(f.host, a.Namespace, a.ips()[0])
		f.must(f.del(a))
	})
}

// TestTwoInterfacesSockets deletes one of two interfaces: the pod's sockets stay enabled until the other is deleted.
func TestTwoInterfacesSockets(t *testing.T) {
	f := newSocketFixture(t)
	socket := func(name string) []byte {
		return []byte(strings.Replace(string(network(name, "veth", "")), `"services":"tc"`, `"services":"socket"`, 1))
	}
	a := f.added("a", socket("net"))
	second := *a
	second.request.IfName, second.request.Config = "eth1", socket("second")
	f.must(f.add(&second))
	f.must(f.del(&second))
	f.must(f.check(a))
	f.must(f.add(&second))
	f.must(f.del(a))
	f.must(f.check(&second))
	f.must(f.del(&second))
	f.tables(func(d *datapath.Datapath) error {
		scopes, err := d.Sockets().List(t.Context())
		pods := slices.DeleteFunc(scopes, func(s datapath.SocketScope) bool { return s.Kind != datapath.PodScope })
		testkit.Check(t, err == nil && len(pods) == 0, "left are %v, %v", pods, err)
		return nil
	})
}
