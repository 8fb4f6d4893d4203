// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"mustang/internal/testkit"
)

// taking returns the configurations of two networks with one subnet, whose pods ask for one address.
func taking(link, services string) (one, two []byte) {
	one = network("one", link, fmt.Sprintf(`,"services":%q,"runtimeConfig":{"ips":["10.114.0.7/24","fd00:114::7/64"]}`, services))
	return one, bytes.ReplaceAll(one, []byte(`"one"`), []byte(`"two"`))
}

// takingModes are link modes with the programs of pods on the host and on the pod's own device.
var takingModes = []string{"veth", "bridge", "macvlan"}

// TestAddressOfAnotherPod adds a pod whose address another one has, of another network: the first keeps its endpoint and source guard, whether
// the second is refused or deleted.
func TestAddressOfAnotherPod(t *testing.T) {
	for _, services := range []string{"tc", "socket", "both", "off"} {
		for _, link := range takingModes {
			t.Run(services+" "+link, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.plugin.Cgroup = testkit.Cgroup(t)
				one, two := taking(link, services)
				first, second := f.added("a", one), f.pod("b", two)
				if err := f.add(second); err == nil {
					t.Error("the second pod has the address too")
				}
				f.must(f.check(first))
				f.must(f.del(second))
				f.checkAndDelete(first)
				f.must(f.del(f.added("c", two)))
			})
		}
	}
}

// TestAddressesAtOnce adds pods of two networks with one address at once: no more than one gets it, and nothing is left of the other.
func TestAddressesAtOnce(t *testing.T) {
	for _, link := range takingModes {
		t.Run(link, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			one, two := taking(link, "off")
			first, second := f.pod("a", one), f.pod("b", two)
			for range 10 {
				var errs [2]error
				var all sync.WaitGroup
				all.Go(func() { errs[0] = f.add(first) })
				all.Go(func() { errs[1] = f.add(second) })
				all.Wait()
				if errs[0] == nil && errs[1] == nil {
					t.Error("both pods have the address")
				}
				f.must(f.del(first))
				f.must(f.del(second))
			}
			f.must(f.add(first))
			f.must(f.del(first))
		})
	}
}

// noneOf fails the test if the datapath knows addresses of a pod.
func (f *fixture) noneOf(p *pod) {
	f.t.Helper()
	for _, line := range f.left() {
		for _, ip := range p.ips() {
			if strings.HasPrefix(line, "endpoint ") && strings.HasSuffix(line, " "+ip.String()) {
				f.t.Errorf("%s is left", line)
			}
		}
	}
}

// TestNeighboursOutlastFailedAdd has an ADD fail for the address of a pod: the host and the pod's neighbours reach it still, at once.
func TestNeighboursOutlastFailedAdd(t *testing.T) {
	for _, link := range takingModes {
		t.Run(link, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			one, two := taking(link, "tc")
			first, peer := f.added("a", one), f.added("c", network("one", link, ""))
			see := func() {
				t.Helper()
				for _, ip := range first.ips() {
					f.reach(f.host, first.Namespace, ip)
					f.reach(peer.Namespace, first.Namespace, ip)
				}
			}
			see()
			f.oneLine(f.add(f.pod("b", two)), "belongs to endpoint")
			see()
			f.must(f.check(first))
		})
	}
}

// TestPolicyOutlastsFailedAdd has an ADD fail for the address of a protected pod, which stays protected.
func TestPolicyOutlastsFailedAdd(t *testing.T) {
	f := newFixture(t)
	one, two := taking("bridge", "tc")
	server := f.pod("a", one)
	server.request.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;LABELS=app:web"
	f.must(f.add(server))
	stranger := f.added("c", network("one", "bridge", ""))
	f.policies(webFromShop)
	t.Cleanup(func() { f.policies("") })
	to := testkit.Echo(t, server.Namespace, "tcp", netip.AddrPortFrom(server.ips()[0], 0).String())
	f.denied(stranger, to)
	f.oneLine(f.add(f.pod("b", two)), "belongs to endpoint")
	f.must(f.check(server))
	f.denied(stranger, to)
}

// TestDelAgainAfterReuse deletes a pod again whose address another one has by then: with the result of ADD, as a runtime keeps it, also
// when the network namespace is gone or another one is at its path. The other pod keeps all that the datapath has of it, and its host ports.
func TestDelAgainAfterReuse(t *testing.T) {
	for _, services := range []string{"tc", "socket"} {
		for _, link := range takingModes {
			t.Run(services+" "+link, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.plugin.Cgroup = testkit.Cgroup(t)
				config, _ := taking(link, services)
				config = bytes.Replace(config, []byte(`"ips"`), []byte(`"portMappings":[{"hostPort":8080,"containerPort":80}],"ips"`), 1)
				old := f.added("a", config)
				f.must(f.del(old))
				next := f.added("b", config)
				f.must(f.check(next))

				withResult := *old
				withResult.request.Config = withPrevious(config, text(t, old.result))
				f.must(f.del(&withResult))
				f.must(f.check(next))
				for _, path := range []string{"", next.request.Netns} { // as paths of processes are used again
					withResult.request.Netns = path
					f.must(f.del(&withResult))
					f.must(f.check(next))
				}
				f.checkAndDelete(next)
				f.noneOf(next)
			})
		}
	}
}
