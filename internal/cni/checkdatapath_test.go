// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/testkit"
)

// tables calls fn with the node's datapath.
func (f *fixture) tables(fn func(*datapath.Datapath) error) {
	f.t.Helper()
	d, err := datapath.OpenExisting(f.plugin.datapathOptions())
	f.must(err)
	defer d.Close()
	f.must(fn(d))
}

func dropEndpoint(f *fixture, p *pod) {
	f.tables(func(d *datapath.Datapath) error { return d.DeleteEndpointIP(p.ips()[0]) })
}

// dropPrograms removes the pins that keep the pod's programs attached.
func dropPrograms(f *fixture, _ *pod) {
	pins, err := filepath.Glob(filepath.Join(f.plugin.BPFRoot, "v*/links/[0-9]*"))
	f.must(err)
	if len(pins) == 0 {
		f.t.Fatal("no program is attached")
	}
	for _, pin := range pins {
		f.must(os.Remove(pin))
	}
}

func dropHost(f *fixture, _ *pod) {
	f.tables(func(d *datapath.Datapath) error { return d.DeleteHost(f.host) })
}

func dropSockets(f *fixture, _ *pod) {
	f.tables(func(d *datapath.Datapath) error { return d.DetachSocket(f.plugin.Cgroup) })
}

func dropUplinks(f *fixture, _ *pod) {
	f.tables(func(d *datapath.Datapath) error {
		all, err := d.Uplinks()
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("uplinks are %v", all)
		}
		if err != nil {
			return err
		}
		return d.DeleteUplink(all[0])
	})
}

func (f *fixture) dropPorts(*pod) { f.dropServices() }

func (f *fixture) redirectPorts(*pod) {
	f.tables(func(d *datapath.Datapath) error {
		services, err := d.Services()
		if err != nil {
			return err
		}
		for _, s := range services {
			elsewhere := outsideAddresses[0].Addr()
			if s.Frontend.Addr().Is6() {
				elsewhere = outsideAddresses[1].Addr()
			}
			s.Backends = []netip.AddrPort{netip.AddrPortFrom(elsewhere, 9)}
			if _, _, err := d.PutService(s); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestCheckSockets tampers with what translates sockets.
func TestCheckSockets(t *testing.T) {
	f := newFixture(t)
	f.plugin.Cgroup = testkit.Cgroup(t)
	config := []byte(strings.Replace(string(network("net", "veth", "")), `"services":"tc"`, `"services":"socket"`, 1))
	for _, row := range []struct {
		name string
		do   func(*fixture, *pod)
		want string
		// shared is set for what the next ADD repairs.
		shared bool
	}{
		{"pod dismissed", dismiss, "sockets are not translated", false},
		{"host unknown", dropHost, "not known to the datapath", true},
		{"programs detached", dropSockets, "lacks the socket programs", true},
		{"one detached, its link pinned", detach("cgroup-*sendmsg6"), "lacks the socket programs sendmsg6", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := f.in(t)
			p := f.added("a", config)
			f.must(f.check(p))
			row.do(f, p)
			f.oneLine(f.check(p), row.want)
			if row.shared {
				next := f.added("next", config)
				f.must(f.check(p))
				f.must(f.del(next))
			}
			f.must(f.del(p))
		})
	}
	p := f.added("b", config)
	f.must(os.Rename(f.plugin.BPFRoot, f.plugin.BPFRoot+"-moved"))
	f.oneLine(f.check(p), "its datapath is gone", f.plugin.BPFRoot)
	f.must(f.del(p))
	p = f.added("c", config) // makes it again, and the programs for sockets
	f.must(f.check(p))
	f.must(f.del(p))
}

func dismiss(f *fixture, p *pod) {
	cookie, err := p.Cookie()
	f.must(err)
	f.tables(func(d *datapath.Datapath) error { return d.DeleteSocketPod(cookie) })
}
