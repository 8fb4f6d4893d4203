// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/qdisc"
)

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
					command(t, pod.Namespace, "ip addr flush dev eth0 scope global")
					command(t, pod.Namespace, "ip addr add 8.8.8.8/32 dev eth0")
					command(t, pod.Namespace, fmt.Sprintf("ip addr add %s/32 dev eth0", victim.ips()[0]))
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

// TestBandwidthHolds has root of a pod remove the limits that it reaches: what the pod receives and sends stays limited where
// it has a device on the host (podlink.TestBandwidthHolds tests that with packets), and CHECK reports the limit that is gone.
func TestBandwidthHolds(t *testing.T) {
	const rates = `,"runtimeConfig":{"bandwidth":{"ingressRate":8000000,"egressRate":8000000}}`
	for _, mode := range []string{"veth", "bridge"} {
		f := newFixture(t)
		p := f.added("a", network("net", mode, rates))
		f.must(f.check(p))
		command(t, p.Namespace, "tc qdisc del dev eth0 root")
		if strings.Contains(command(t, p.Namespace, "tc qdisc show dev eth0"), "clsact") {
			command(t, p.Namespace, "tc qdisc del dev eth0 clsact")
		}
		if got := command(t, p.Namespace, "tc qdisc show dev eth0"); strings.Contains(got, "fq") || strings.Contains(got, "tbf") {
			t.Errorf("%s: the pod's queues are %s", mode, got)
		}
		device := record.DeviceName("net", p.request.owner())
		if says, err := qdisc.Deviation(f.host, device, qdisc.Limit{Rate: 8_000_000}); says != "" || err != nil {
			t.Errorf("%s: the host's device %s, %v", mode, says, err)
		}
		if says, err := qdisc.PoliceDeviation(f.host, device, qdisc.Limit{Rate: 8_000_000}); says != "" || err != nil {
			t.Errorf("%s: the host's device %s, %v", mode, says, err)
		}
		err := f.check(p)
		f.oneLine(err, `device "eth0"`)
		if strings.Contains(fmt.Sprint(err), device) {
			t.Errorf("%s: %v", mode, err)
		}
	}
	f := newFixture(t)
	f.oneLine(f.add(f.pod("a", network("net", "macvlan", rates))), "can't limit traffic to a pod")
}
