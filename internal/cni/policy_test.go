// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// policies makes the policies and pods of documents those of the command line.
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

// denied sends to a server that must not answer, and must be told so by a counter.
func (f *fixture) denied(from *pod, to netip.AddrPort) {
	f.t.Helper()
	d, err := datapath.OpenExisting(f.plugin.datapathOptions())
	f.must(err)
	defer d.Close()
	drops := func() uint64 {
		counters, err := d.Flows().Counters()
		f.must(err)
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
	if drops() == before {
		f.t.Errorf("%s to %s: nothing was dropped", from.Name(), to)
	}
}

const webFromShop = `---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, spec: {podSelector: {matchLabels: {app: web}},
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}}
---
`

// TestPolicies adds pods of Kubernetes and others with services at the socket, as is the default, and sends real traffic.
func TestPolicies(t *testing.T) {
	for _, mode := range []string{"veth", "bridge", "macvlan", "ipvlan-l2", "netkit"} {
		t.Run(mode, func(t *testing.T) {
			requireLink(t, mode)
			f := newFixture(t)
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
					if _, err := testkit.RoundTrip(t, from.Namespace, "tcp", to.String(), []byte("hello")); err != nil {
						t.Errorf("%s to %s: %v", from.Name(), to, err)
					}
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
				// What is said of the pod later counts: it is no web server anymore, and then one again.
				pod := `{apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: shop, labels: {app: LABEL}}, status: {podIP: ` + addr.String() + `}}`
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
}
