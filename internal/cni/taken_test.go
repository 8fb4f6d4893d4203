// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy/manifest"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// taking returns the configurations of two networks with one subnet, whose pods request one address.
func taking(link, services string) (one, two []byte) {
	one = network("one", link, fmt.Sprintf(`,"services":%q,"runtimeConfig":{"ips":["10.114.0.7/24","fd00:114::7/64"]}`,
		services))
	return one, bytes.ReplaceAll(one, []byte(`"one"`), []byte(`"two"`))
}

// takingModes are link modes with the programs of pods on the host and on the pod's own device.
var takingModes = []string{"veth", "bridge", "macvlan"}

// TestAddressOfAnotherPod adds a pod whose address another one has, of another network: the first keeps its endpoint
// and source guard, whether the second is refused or deleted. The host and its neighbours reach it still, at once.
func TestAddressOfAnotherPod(t *testing.T) {
	for _, services := range []string{"tc", "socket", "both", "off"} {
		for _, link := range takingModes {
			t.Run(services+" "+link, func(t *testing.T) {
				t.Parallel()
				f := newSocketFixture(t)
				one, two := taking(link, services)
				first, second := f.added("a", one), f.pod("b", two)
				peer := f.added("c", network("one", link, fmt.Sprintf(`,"services":%q`, services)))
				for range 2 {
					for _, ip := range first.ips() {
						f.reach(f.host, first.Namespace, ip)
						f.reach(peer.Namespace, first.Namespace, ip)
					}
					f.oneLine(f.add(second), "a pod of network")
				}
				f.must(f.check(first))
				f.must(f.del(second))
				f.checkAndDelete(first)
				f.must(f.del(f.added("d", two)))
			})
		}
	}
}

// TestAddressesAtOnce adds pods of two networks with one address at once: no more than one gets it, and nothing is left
// of the other.
func TestAddressesAtOnce(t *testing.T) {
	eachName(t, takingModes, newFixture, func(t *testing.T, f *fixture, link string) {
		one, two := taking(link, "off")
		first, second := f.pod("a", one), f.pod("b", two)
		for range 10 {
			var errs [2]error
			var all sync.WaitGroup
			all.Go(func() { errs[0] = f.add(first) })
			all.Go(func() { errs[1] = f.add(second) })
			all.Wait()
			testkit.Check(t, errs[0] != nil || errs[1] != nil, "both pods have the address")
			f.must(f.del(first))
			f.must(f.del(second))
		}
		f.must(f.add(first))
		f.must(f.del(first))
	})
}

func (f *fixture) noneOf(p *pod) {
	f.t.Helper()
	for _, line := range f.left() {
		for _, ip := range p.ips() {
			testkit.Check(f.t, !strings.HasPrefix(line, "endpoint ") || !strings.HasSuffix(line, " "+ip.String()),
				"%s is left", line)
		}
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
	f.oneLine(f.add(f.pod("b", two)), "a pod of network")
	f.must(f.check(server))
	f.denied(stranger, to)
}

// TestDelAgainAfterReuse deletes a pod again after another one got its address. It passes the result of ADD, as a
// runtime keeps it, also if the network namespace is gone or another one is at its path. The other pod keeps all that
// the datapath has of it, and its host ports.
func TestDelAgainAfterReuse(t *testing.T) {
	for _, services := range []string{"tc", "socket"} {
		for _, link := range takingModes {
			t.Run(services+" "+link, func(t *testing.T) {
				t.Parallel()
				f := newSocketFixture(t)
				config, _ := taking(link, services)
				config = bytes.Replace(config, []byte(`"ips"`),
					[]byte(`"portMappings":[{"hostPort":8080,"containerPort":80}],"ips"`), 1)
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

// policies replaces the policies and pods of the command line with the documents.
func (f *fixture) policies(documents string) {
	f.t.Helper()
	var set manifest.Set
	if documents != "" {
		set = testkit.Must(manifest.Read(strings.NewReader(documents)))(f.t)
	}
	f.tables(func(d *datapath.Datapath) error {
		_, err := d.Policies().Apply(f.t.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot})
		return err
	})
}

// denied sends to a server that must not answer. A counter must count the drop.
func (f *fixture) denied(from *pod, to netip.AddrPort) {
	f.t.Helper()
	d := testkit.Must(datapath.OpenExisting(f.plugin.datapathOptions()))(f.t)
	defer d.Close()
	drops := func() uint64 {
		counters := testkit.Must(d.Flows().Counters())(f.t)
		for _, c := range counters {
			if c.Name == "drop_policy_ingress" {
				return c.Packets
			}
		}
		f.t.Fatal("no such counter")
		return 0
	}
	before := drops()
	f.must(from.Do(func() error {
		ctx, cancel := context.WithTimeout(f.t.Context(), 300*time.Millisecond)
		defer cancel()
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String()); err == nil {
			_ = conn.Close()
			f.t.Errorf("%s connected to %s", from.Name(), to)
		}
		return nil
	}))
	testkit.Check(f.t, drops() != before, "%s to %s: nothing was dropped", from.Name(), to)
}

const webFromShop = `---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}},
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}}
---
`

// TestPolicies adds pods of Kubernetes and others with services at the socket, as is the default, and sends real
// traffic.
func TestPolicies(t *testing.T) {
	modes := []string{"veth", "bridge", "macvlan", "ipvlan-l2", "netkit"}
	eachName(t, modes, newFixture, func(t *testing.T, f *fixture, mode string) {
		requireLink(t, mode)
		config := network("net", mode, `,"services":"socket"`)
		add := func(id string, more, args string) *pod {
			p := f.pod(id, network("net", mode, `,"services":"socket"`+more))
			p.request.Args = args
			f.must(f.add(p))
			f.must(f.check(p))
			return p
		}
		server := add("a", "", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;LABELS=app:web")
		client := add("b", `,"namespace":"shop","labels":{"role":"client"}`, "")
		other := add("c", `,"args":{"cni":{"labels":[{"key":"role","value":"client"}]}}`, "") // of namespace default
		stranger := add("d", "", "")                                                          // nothing is known of it
		t.Cleanup(func() { f.policies("") })
		for i, addr := range server.ips() {
			to := testkit.Echo(t, server.Namespace, "tcp", netip.AddrPortFrom(addr, 0).String())
			allowed := func(from *pod) {
				t.Helper()
				_, err := testkit.RoundTrip(t, from.Namespace, "tcp", to.String(), []byte("hello"))
				testkit.Check(t, err == nil, "%s to %s: %v", from.Name(), to, err)
			}
			f.policies("")
			for _, p := range []*pod{client, other, stranger} {
				allowed(p)
			}
			f.policies(webFromShop)
			allowed(client)
			f.denied(other, to)
			f.denied(stranger, to)
			if i > 0 {
				continue
			}
			// Later labels of the pod count: it stops being a web server, and then is one again.
			pod := `{apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: shop, labels: {app: LABEL}}, status: ` +
				`{podIP: ` + addr.String() + `}}`
			f.policies(webFromShop + strings.Replace(pod, "LABEL", "db", 1))
			allowed(stranger)
			f.policies(webFromShop + strings.Replace(pod, "LABEL", "web", 1))
			f.denied(stranger, to)
		}
		for _, p := range []*pod{server, client, other, stranger} {
			f.must(f.del(p))
		}
		f.policies("")
		f.must(f.gc(config))
	})
}

// TestDelOfOtherName forges a record outside of the plugin's directory, which names a device of the node, and calls
// each verb with a name that leads there and another that the protocol's library accepts.
func TestDelOfOtherName(t *testing.T) {
	f := newFixture(t)
	config := network("net", "veth", "")
	p := f.added("a", config)
	f.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: f.host, Name: "node"}, rtnl.VethEnd{Namespace: f.outside,
		Name: "other"}, 1500))
	path := filepath.Join(f.plugin.RunDir, "..", "x", "attachments", "a@eth0.record")
	f.must(os.MkdirAll(filepath.Dir(path), 0o700))
	forged := []byte(`{"owner":{"container":"a","interface":"eth0"},"boot":"x","link":"veth","host_ifname":"node",` +
		`"linked":true,"done":true}` + "\n")
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
	testkit.Must(rtnl.In(f.host).Device("node"))(f.t)
	_, err := rtnl.In(f.host).Device(record.DeviceName("net", p.request.owner()))
	testkit.Check(t, err != nil, "the device of the attachment is left")
}

// TestLongContainerID refuses a container whose name is too long for a record, and has nothing to delete for it.
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

// TestLyingPod gives a pod's device foreign addresses as soon as ADD has made it, and takes its own: the pod becomes
// the endpoint of its own. DEL without a record deletes no other pod's.
func TestLyingPod(t *testing.T) {
	eachName(t, crashModes, newFixture, func(t *testing.T, f *fixture, mode string) {
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
		got := f.endpoints()
		testkit.Check(t, slices.Equal(got, want), "endpoints are %v, want %v", got, want)
		f.must(os.RemoveAll(filepath.Join(f.plugin.RunDir, "two")))
		f.must(os.RemoveAll(f.plugin.stateDir("two")))
		f.must(f.del(pod))
		f.must(f.check(victim))
		got = f.endpoints()
		testkit.Check(t, len(got) == len(victim.ips()), "endpoints after DEL are %v", got)
	})
}
