// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/testkit"
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
