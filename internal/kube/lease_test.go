// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

// TestOneClientLeads has two clients compete for a Lease. One works. The other works once the first has ended, and no
// API server for a while ends the work.
func TestOneClientLeads(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
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
			c.Lead(ctx, Election{Lease: "lease", Identity: fmt.Sprint("client", i), Work: func(ctx context.Context) {
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
	stops[leader]()
	wants("the other leads", leads[1-leader].Load)
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
	for _, set := range []struct {
		had, want []netip.Addr
		have      string
	}{
		{nil, addr[:1], `"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"}]`},
		{nil, addr[1:], `"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"}]`},
		{addr[:1], addr, `"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"},{"ip":"2001:db8::1","ipMode":"VIP"}]`},
		{addr, nil, `"ingress":[]`},
	} {
		testkit.Succeed(t, c.SetIngress(t.Context(), Ingress{"shop", "web", set.had, set.want}))
		have := s.Object(services, "shop", "web")
		testkit.Check(t, strings.Contains(have, set.have), "%v, %v: %s", set.had, set.want, have)
	}
	testkit.Succeed(t, c.SetIngress(t.Context(), Ingress{"shop", "gone", nil, addr}))
	s.Stop()
	testkit.Fails(t, c.SetIngress(t.Context(), Ingress{"shop", "web", nil, addr}),
		"set status.loadBalancer of Service shop/web")
}
