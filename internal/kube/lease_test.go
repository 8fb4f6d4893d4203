// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

// TestOneClientLeads has two clients compete for a Lease. One works. The other works once the first has ended or no
// longer competes, and no API server for a while ends the work. The one that does not work sends few requests.
func TestOneClientLeads(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	var reads, writes atomic.Int64
	s.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			reads.Add(1)
		} else {
			writes.Add(1)
		}
		return false
	}
	var idle [2]atomic.Bool
	var leads [2]atomic.Bool
	var stops [2]context.CancelFunc
	for i := range leads {
		c := testkit.Must(Connect(s.Kubeconfig(t)))(t)
		testkit.Check(t, c.leaseFor == leaseFor, "a Lease is held for %s", c.leaseFor)
		c.leaseFor = 8 * time.Second
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		stops[i] = func() { stop(); <-done }
		go func() {
			c.Lead(ctx, Election{Lease: "lease", Identity: fmt.Sprint("client", i),
				Competes: func() bool { return !idle[i].Load() }, Work: func(ctx context.Context) {
					leads[i].Store(true)
					<-ctx.Done()
					leads[i].Store(false)
				}, Failing: func(error) {}})
			close(done)
		}()
	}
	leader := -1
	wants := func(what string, is func() bool) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			if !is() {
				return fmt.Errorf("%s: %t %t", what, leads[0].Load(), leads[1].Load())
			}
			return nil
		})
	}
	wants("one leads", func() bool {
		for i := range leads {
			if leads[i].Load() {
				leader = i
			}
		}
		return leader >= 0
	})
	testkit.Check(t, !leads[1-leader].Load(), "both lead")
	const renewals = 16
	wants("it renews the Lease", func() bool { return writes.Load() >= renewals })
	// A read of the leader, and perhaps a failed one, comes before each write.
	others := reads.Load() - writes.Load()
	testkit.Check(t, others <= renewals/2, "the other client has read the Lease %d times", others)
	idle[leader].Store(true)
	wants("the other leads", func() bool { return leads[1-leader].Load() && !leads[leader].Load() })
	idle[leader].Store(false)
	leader = 1 - leader
	stops[leader]()
	wants("the first one leads again", leads[1-leader].Load)
	lease := s.Object("/apis/coordination.k8s.io/v1/leases", "kube-system", "lease")
	holder := fmt.Sprintf(`"holderIdentity":"client%d"`, 1-leader)
	testkit.Check(t, strings.Contains(lease, holder), "the Lease is %s", lease)
	s.Stop()
	wants("nobody leads without an API server", func() bool { return !leads[1-leader].Load() })
	stops[1-leader]()
}

// TestSetIngressLeavesOthers sets addresses, unless another controller has set others meanwhile.
func TestSetIngressLeavesOthers(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	c := testkit.Must(Connect(s.Kubeconfig(t)))(t)
	s.Put(t, services, object("web", "b"))
	addr := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	set := func(name string, had, want []netip.Addr) bool {
		t.Helper()
		return testkit.Must(c.SetIngress(t.Context(), Ingress{"shop", name, "", had, want}))(t)
	}
	for _, v := range []struct {
		had, want []netip.Addr
		sets      bool
		have      string
	}{
		{nil, addr[:1], true, `"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"}]`},
		{nil, addr[1:], false, `"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"}]`},
		{addr[:1], addr, true, `"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"},{"ip":"2001:db8::1","ipMode":"VIP"}]`},
		{addr, nil, true, `"ingress":[]`},
	} {
		testkit.Check(t, set("web", v.had, v.want) == v.sets, "%v, %v", v.had, v.want)
		have := s.Object(services, "shop", "web")
		testkit.Check(t, strings.Contains(have, v.have), "%v, %v: %s", v.had, v.want, have)
	}
	other := testkit.Must(c.SetIngress(t.Context(), Ingress{"shop", "web", "former", nil, addr}))(t)
	testkit.Check(t, !other, "a Service that was made again has the addresses of the former one")
	s.Put(t, services, strings.Replace(object("web", "b"), "{",
		`{"status": {"loadBalancer": {"ingress": [{"ip": "2001:DB8:0::1"}]}}, `, 1))
	testkit.Check(t, set("web", addr[1:], nil), "an address in another form stays")
	testkit.Check(t, !set("gone", nil, addr), "a Service that is gone has addresses")
	s.Stop()
	_, err := c.SetIngress(t.Context(), Ingress{"shop", "web", "", nil, addr})
	testkit.Fails(t, err, "set status.loadBalancer of Service shop/web")
}
