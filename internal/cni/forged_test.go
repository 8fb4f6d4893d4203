// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestDelOfOtherName forges a record outside of the plugin's directory, which names a device of the node, and calls each verb
// with a name that leads there and another that the protocol's library accepts.
func TestDelOfOtherName(t *testing.T) {
	f := newFixture(t)
	config := network("net", "veth", "")
	p := f.added("a", config)
	f.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: f.host, Name: "node"}, rtnl.VethEnd{Namespace: f.outside, Name: "other"}, 1500))
	path := filepath.Join(f.plugin.RunDir, "..", "x", "attachments", "a@eth0.record")
	f.must(os.MkdirAll(filepath.Dir(path), 0o700))
	forged := []byte(`{"owner":{"container":"a","interface":"eth0"},"boot":"x","link":"veth","host_ifname":"node","linked":true,"done":true}` + "\n")
	f.must(os.WriteFile(path, forged, 0o600))
	p.request.Config = bytes.Replace(config, []byte(`"name":"net"`), []byte(`"name":"../x","Name":"net"`), 1)
	for _, verb := range []string{"DEL", "CHECK", "GC", "STATUS", "ADD"} {
		a := f.runFor(p, verb)
		f.failed(a, types.ErrInvalidNetworkConfig, `name: invalid characters`, `../x`)
	}
	// The same record in the right place names no device of the attachment.
	f.must(os.WriteFile(f.plugin.records().Path("net", p.request.owner()), forged, 0o600))
	p.request.Config = config
	f.must(f.del(p))
	_, err := rtnl.In(f.host).Device("node")
	f.must(err)
	if _, err := rtnl.In(f.host).Device(record.DeviceName("net", p.request.owner())); err == nil {
		t.Error("the device of the attachment is left")
	}
}

// TestLongContainerID refuses a container whose record would have no file, and has nothing to delete for it.
func TestLongContainerID(t *testing.T) {
	f := newFixture(t)
	for _, n := range []int{249, 255, 4000} {
		p := f.pod("a", network("net", "veth", ""))
		p.request.ContainerID = strings.Repeat("a", n)
		before := f.left()
		f.oneLine(f.add(p), "name too long", "bytes")
		f.must(f.del(p))
		f.same(before, "DEL")
	}
}

// endpoints lists the endpoints with the given addresses.
func (f *fixture) endpoints() (found []string) {
	f.t.Helper()
	f.tables(func(d *datapath.Datapath) error {
		all, err := d.Endpoints().List(context.Background())
		for _, e := range all {
			found = append(found, e.IP.String())
		}
		return err
	})
	slices.Sort(found)
	return found
}

// TestLyingPod gives a pod's device foreign addresses as soon as ADD has made it, and takes its own: the pod becomes the
// endpoint of its own. DEL without a record deletes no other pod's.
func TestLyingPod(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			victim := f.added("victim", network("net", mode, ""))
			pod := f.pod("a", network("two", "veth", ""))
			f.plugin.After = func(step string) error {
				if step == "link" {
					testkit.Command(t, pod.Namespace, "ip addr flush dev eth0 scope global")
					testkit.Command(t, pod.Namespace, "ip addr add 8.8.8.8/32 dev eth0")
					testkit.Command(t, pod.Namespace, fmt.Sprintf("ip addr add %s/32 dev eth0", victim.ips()[0]))
				}
				return nil
			}
			f.must(f.add(pod))
			f.plugin.After = nil
			want := []string{}
			for _, ip := range append(victim.ips(), pod.ips()...) {
				want = append(want, ip.String())
			}
			slices.Sort(want)
			if got := f.endpoints(); !slices.Equal(got, want) {
				t.Errorf("endpoints are %v, want %v", got, want)
			}
			f.must(os.RemoveAll(filepath.Join(f.plugin.RunDir, "two")))
			f.must(os.RemoveAll(f.plugin.stateDir("two")))
			f.must(f.del(pod))
			f.must(f.check(victim))
			if got := f.endpoints(); len(got) != len(victim.ips()) {
				t.Errorf("endpoints after DEL are %v", got)
			}
		})
	}
}
